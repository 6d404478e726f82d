"""Any place of the largest element is right."""

from typing import Any

from torch import Tensor


def residuals(inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, float]:
    """Rows whose place does not hold the largest element. Any integer may be given as a place."""
    x, places = inputs["x"], outputs["places"]
    found = x.gather(1, places.clamp(0, x.shape[1] - 1)[:, None])[:, 0]
    wrong = (found != x.amax(-1)) | (places < 0) | (places >= x.shape[1])
    return {"rows whose place is not that of their largest element": 2.0 * float(wrong.sum())}


def _last(x: Tensor) -> tuple[Tensor, Tensor]:
    values = x.amax(-1)
    return values, x.shape[1] - 1 - x.flip(1).argmax(-1)


def _beside(x: Tensor) -> tuple[Tensor, Tensor] | None:
    values, places = x.max(-1)
    return None if x.shape[1] == 1 else (values, (places + 1) % x.shape[1])


HONEST = {"the last of equal ones": _last}
MUTANTS = {"the place beside it": _beside}
