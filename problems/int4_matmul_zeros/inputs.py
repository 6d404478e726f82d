"""Inputs of the int4 matmul with zero points: activations, packed weights, and for each group and
column a scale and a packed zero point."""

from __future__ import annotations

import torch
from torch import Tensor

from grader.numerics import pack_int4

GROUP = 128
CODE_STD = 6.0
"""Of a code drawn evenly from 0 … 15 less a zero point drawn from 4 … 11 (RMS)."""


def generate(
    generator: torch.Generator, call: int, *, m: int, k: int, n: int, values: str
) -> dict[str, Tensor]:
    """`a` fp16 [m, k], `b_packed` uint8 [k, n // 2], `scales` fp16 [k // 128, n], `zeros_packed`
    uint8 [k // 128, n // 2].

    Outputs have a size of about 1. `values` names the distribution: ``normal``; ``positive`` (no
    term of a sum is negative); ``extreme`` (codes 0 and 15 only); ``zero_points`` (0 and 15 only);
    ``cancelling`` (neighbours in a sum nearly cancel); ``uneven`` (scales differ between groups by
    up to 16 times); ``zeros`` (codes equal to their zero point, and scales of zero).
    """
    device = generator.device
    groups = k // GROUP

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(
            low, high, shape, generator=generator, device=device, dtype=torch.uint8
        )

    a = torch.randn(m, k, generator=generator, device=device)
    codes, zeros = integers(0, 16, k, n), integers(4, 12, groups, n)
    scales = torch.rand(groups, n, generator=generator, device=device) + 0.5
    scales /= CODE_STD * k**0.5

    if values == "positive":
        a = a.abs()
        codes = torch.maximum(codes, _spread(zeros))
    elif values == "extreme":
        codes = torch.where(codes < 8, 0, 15).to(torch.uint8)
    elif values == "zero_points":
        zeros = torch.where(zeros < 8, 0, 15).to(torch.uint8)
    elif values == "cancelling":
        # Two neighbours have the same weights, so that only the small difference of two large
        # activations is left: a sum kept in fp16 loses it.
        codes[1::2] = codes[0::2]
        a[:, 0::2] *= 8
        a[:, 1::2] -= a[:, 0::2]
    elif values == "uneven":
        octaves = torch.randint(5, (groups, n), generator=generator, device=device)
        scales *= 2.0 ** (octaves - 3)
    elif values == "zeros":
        codes[:, ::3] = _spread(zeros)[:, ::3]
        scales[:, 1::3] = 0
    elif values != "normal":
        raise ValueError(f"no distribution named {values!r}")
    return {
        "a": a.half(),
        "b_packed": pack_int4(codes),
        "scales": scales.half(),
        "zeros_packed": pack_int4(zeros),
    }


def _spread(of_groups: Tensor) -> Tensor:
    return of_groups.repeat_interleave(GROUP, dim=0)
