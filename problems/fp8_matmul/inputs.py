"""Inputs of the fp8 matmul: two matrices of codes, and their scales by blocks."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128
LARGEST = 448.0
LEAST = 2.0**-9
"""The smallest number of fp8_e4m3, and the step of its subnormal numbers."""
STEP = 16
MOST_OCTAVES = 4
CODE_STD = 150.0


def generate(
    generator: torch.Generator, call: int, *, m: int, k: int, n: int, values: str
) -> dict[str, Tensor]:
    """`a` fp8 [m, k], `a_scales` fp32 [m, k // 128], `b` fp8 [n, k], `b_scales` fp32
    [ceil(n / 128), k // 128].

    Outputs have a size of about 1. `values` names the distribution: ``normal``; ``extreme`` (codes
    ±448 and ±2⁻⁹); ``tiny`` (codes are small, most of them subnormal); ``uneven`` (scales differ by
    powers of two); ``zeros`` (blocks of zero codes, and scales of zero); ``cancelling`` (16 terms
    are large and positive, the next 16 take them back but for one).
    """
    device = generator.device

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    a, b = normal(m, k) * CODE_STD, normal(n, k) * CODE_STD
    size = CODE_STD**2 * k**0.5
    if values == "extreme":
        a, b = (torch.where(x.abs() > CODE_STD, LARGEST, LEAST) * x.sign() for x in (a, b))
        size = LARGEST**2 * 0.3 * k**0.5
    elif values == "tiny":
        a, b = (x / CODE_STD * 3 * LEAST for x in (a, b))
        size = (3 * LEAST) ** 2 * k**0.5
    elif values == "zeros":
        a[:, :BLOCK] = 0
        b[::3] = 0
    elif values == "cancelling":
        a, b = _cancelling(a, b)
        size = 0.5 * CODE_STD**2 * (k / STEP) ** 0.5
    elif values not in ("normal", "uneven"):
        raise ValueError(f"no distribution named {values!r}")

    blocks = k // BLOCK
    a_scales = torch.rand(m, blocks, generator=generator, device=device) + 0.5
    b_scales = torch.rand(-(-n // BLOCK), blocks, generator=generator, device=device) + 0.5
    b_scales /= size
    if values == "uneven":
        for scales in (a_scales, b_scales):
            octaves = torch.randint(
                -MOST_OCTAVES, 1, scales.shape, generator=generator, device=device
            )
            scales *= 2.0**octaves
    elif values == "zeros":
        a_scales[::4, 1:] = 0
    return {"a": _fp8(a), "a_scales": a_scales, "b": _fp8(b), "b_scales": b_scales}


def _fp8(values: Tensor) -> Tensor:
    return values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def _cancelling(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The first of 16 terms is not taken back."""
    first, second = a.abs().unflatten(1, (-1, 2, STEP)).unbind(2)
    back = -first
    back[:, :, 0] = second[:, :, 0] - first[:, :, 0]
    weights = b.abs().unflatten(1, (-1, 2, STEP))[:, :, :1].expand(-1, -1, 2, -1)
    return torch.stack((first, back), dim=2).flatten(1), weights.flatten(1)
