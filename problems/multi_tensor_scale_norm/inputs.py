"""Inputs of the unscaling: a list of 1-D fp32 gradients, and the reciprocal of their scale."""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHTS = (0, 1, 2, 5, 20, 100, 700, 3000)
"""How the sizes of mixed tensors relate; tensors of weight 0 have one element."""
HUGE = 1e14
"""So large that no sum of squares overflows fp32."""
SPECIAL = {"infinite": torch.inf, "nan": torch.nan}


def generate(
    generator: torch.Generator,
    call: int,
    *,
    count: int,
    total: int,
    sizes: str,
    values: str,
    scale: int,
) -> dict[str, list[Tensor] | float]:
    """`count` tensors with `total` elements between them, of ``equal`` or ``mixed`` `sizes`, and
    one over the `scale`. `values` is ``normal``, ``one_left`` (the others zero), ``some_zero``
    (every other tensor), ``huge``, ``outliers``, or ``infinite`` or ``nan`` for one element.
    """
    # Other gradients at every call, even when two calls are seeded alike.
    generator.manual_seed(generator.initial_seed() + call)
    device = generator.device
    flat = torch.randn(total, generator=generator, device=device)
    if values == "one_left":
        flat[1:] = 0
    elif values == "huge":
        flat *= HUGE
    elif values == "outliers":
        flat[:: max(1, total // 5)] *= 1000
    elif values in SPECIAL:
        at = torch.randint(total, (1,), generator=generator, device=device)
        flat[at] = SPECIAL[values]
    grads = list(flat.split(_mixed(count, total) if sizes == "mixed" else _equal(count, total)))
    if values == "some_zero":
        for tensor in grads[1::2]:
            tensor.zero_()
    return {"grads": grads, "inv_scale": 1 / scale}


def _equal(count: int, total: int) -> list[int]:
    lengths = [total // count] * count
    lengths[-1] += total - sum(lengths)
    return lengths


def _mixed(count: int, total: int) -> list[int]:
    """One element for each tensor, the rest shared out by weight, what is left to the last."""
    weights = [WEIGHTS[index * 5 % len(WEIGHTS)] for index in range(count)]
    rest = total - count
    lengths = [1 + rest * weight // max(1, sum(weights)) for weight in weights]
    lengths[-1] += total - sum(lengths)
    return lengths
