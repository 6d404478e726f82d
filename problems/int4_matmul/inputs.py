"""Inputs of the int4 matmul: activations, packed weights, and a scale per group and column."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 128
CODE_STD = 4.6
"""Standard deviation of a code drawn evenly from -8 … 7."""


def generate(
    generator: torch.Generator, call: int, *, m: int, k: int, n: int, values: str
) -> dict[str, Tensor]:
    """`a` fp16 [m, k], `b_packed` uint8 [k, n // 2], `scales` fp16 [k // 128, n].

    Scales are such that outputs have a size of about 1. `values` names the distribution:
    ``normal``; ``positive`` (no term of a sum is negative); ``one_hot`` (a row of `a` picks a row
    of weights); ``extreme`` (codes 0 and 15 only); ``cancelling`` (neighbours in a sum nearly
    cancel); ``uneven`` (scales differ between groups by up to 64 times); ``zero_groups`` (some
    scales are zero).
    """
    device = generator.device
    a = torch.randn(m, k, generator=generator, device=device)
    codes = torch.randint(16, (k, n), generator=generator, device=device, dtype=torch.uint8)
    scales = torch.rand(k // GROUP, n, generator=generator, device=device) + 0.5
    scales /= CODE_STD * k**0.5

    if values == "positive":
        a = a.abs()
        codes |= 8
    elif values == "one_hot":
        picked = torch.randint(k, (m, 1), generator=generator, device=device)
        a = torch.zeros_like(a).scatter_(1, picked, 1.0)
        scales *= k**0.5
    elif values == "extreme":
        codes = torch.where(codes < 8, 0, 15).to(torch.uint8)
    elif values == "cancelling":
        # Two neighbours have the same weights, so that only the small difference of two large
        # activations is left: a sum kept in fp16 loses it.
        codes[1::2] = codes[0::2]
        a[:, 0::2] *= 8
        a[:, 1::2] -= a[:, 0::2]
    elif values == "uneven":
        octaves = torch.randint(7, (k // GROUP, n), generator=generator, device=device)
        scales *= 2.0 ** (octaves - 4)
    elif values == "zero_groups":
        scales[:, 1::3] = 0
        scales[::2, 2::3] = 0
    elif values != "normal":
        raise ValueError(f"no distribution named {values!r}")
    return {"a": a.half(), "b_packed": pack(codes), "scales": scales.half()}


def pack(codes: Tensor) -> Tensor:
    """Unsigned codes 0 … 15, uint8 [k, n] → [k, n // 2], the even column in the low nibble."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)
