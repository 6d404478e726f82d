"""Inputs of the int8 matrix-vector product: a vector, weights, and a scale for each row."""

from __future__ import annotations

import torch
from torch import Tensor

CODE_STD = 74
"""Standard deviation of a code drawn evenly from -128 … 127."""
STEP = 16
"""Terms that cancel the next as many."""
STEEP = 1.5
"""Size of a weight of `cancelling`. Sixteen terms then add up to about 15."""
MOST_CANCELLING = 2048
MOST_OCTAVES = 2


def generate(
    generator: torch.Generator, call: int, *, n: int, k: int, values: str
) -> dict[str, Tensor]:
    """`x` fp16 [k], `w` int8 [n, k], `scales` fp16 [n], such that outputs have a size of about 1.

    `values` names the distribution: ``normal``; ``extreme`` (codes -128 and 127); ``uneven``
    (scales differ by powers of two); ``zeros`` (rows of codes, and scales, are zero); ``one_hot``
    (`x` picks a column); ``cancelling`` (16 terms are large and positive, the next 16 nearly take
    them back).
    """
    device = generator.device
    x = torch.randn(k, generator=generator, device=device)
    shape = (n, k)
    w = torch.randint(-128, 128, shape, generator=generator, device=device, dtype=torch.int8)
    scales = torch.rand(n, generator=generator, device=device) + 0.5
    scales /= CODE_STD * k**0.5

    if values == "extreme":
        w = torch.where(w < 0, -128, 127).to(torch.int8)
    elif values == "uneven":
        octaves = torch.randint(
            -MOST_OCTAVES, MOST_OCTAVES + 1, (n,), generator=generator, device=device
        )
        scales *= 2.0**octaves
    elif values == "zeros":
        w[::3] = 0
        scales[1::4] = 0
    elif values == "one_hot":
        picked = torch.randint(k, (1,), generator=generator, device=device)
        x = torch.zeros_like(x).scatter_(0, picked, 1.0)
        scales *= k**0.5
    elif values == "cancelling":
        x, w = _cancelling(x, w)
        scales *= STEEP * k**0.5
    elif values != "normal":
        raise ValueError(f"no distribution named {values!r}")
    return {"x": x.half(), "w": w, "scales": scales.half()}


def _cancelling(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    k = len(x)
    size = min(k - k % (2 * STEP), MOST_CANCELLING)
    first, second = x[:size].unflatten(0, (-1, 2, STEP)).unbind(1)
    large = first.abs().half()
    small = second / (STEEP * (size / 2) ** 0.5)
    pairs = torch.stack((large, small - large), dim=1).flatten()
    codes = w[:, :size].unflatten(1, (-1, 2, STEP))[:, :, :1].clamp(min=-127).abs()
    codes = codes.expand(-1, -1, 2, -1).flatten(1)
    rest = x[size:] / (STEEP * k**0.5)
    return torch.cat((pairs, rest)), torch.cat((codes, w[:, size:]), dim=1)
