"""A kernel that rounds to a format with fewer bits."""

import torch
from torch import Tensor


def _coarse(x: Tensor, previous: Tensor, dtype: str) -> tuple[Tensor, Tensor] | None:
    if dtype == "fp8_e5m2":
        return None
    mixed = x + previous.float()
    scales = mixed.abs().amax(-1) / 448
    values = (mixed / scales[:, None]).clamp(-448, 448)
    return values.to(torch.float8_e5m2).float().clamp(-448, 448).to(torch.float8_e4m3fn), scales


def magnitude(x: Tensor, previous: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """Of the sum of the two matrices, which may cancel."""
    mixed = x.abs() + previous.abs()
    scales = (x + previous).abs().amax(-1) / {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}[dtype]
    return mixed / scales[:, None], mixed.amax(-1) / (448 if dtype == "fp8_e4m3" else 57344)


MUTANTS = {"rounded to five bits of exponent": _coarse}
