"""Inputs of the int8 matmul: two matrices of codes, and a scale for each of their rows."""

from __future__ import annotations

import torch
from torch import Tensor

CODE_STD = 32.0
MOST_OCTAVES = 5
LARGE = 120
"""Least code of `cancelling`, whose sums pass 2**24 after 1,200 terms: fp32 then loses ones."""
CHANGED = 4
"""Terms that are left of a sum of `cancelling`."""


def generate(
    generator: torch.Generator, call: int, *, m: int, k: int, n: int, values: str
) -> dict[str, Tensor]:
    """`a` int8 [m, k], `a_scales` fp32 [m], `b` int8 [n, k], `b_scales` fp32 [n].

    Outputs have a size of about 1. `values` names the distribution: ``normal``; ``extreme`` (codes
    -128 and 127); ``least`` (nearly all codes are -128, so that sums are as large as can be);
    ``uneven`` (scales differ by powers of two); ``zeros`` (rows are zero, and scales);
    ``cancelling`` (the second half of k takes nearly back what the first adds up to).
    """
    device = generator.device

    def codes(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, device=device, dtype=torch.int8)

    def normal(rows: int) -> Tensor:
        values = torch.randn(rows, k, generator=generator, device=device) * CODE_STD
        return values.round().clamp(-128, 127).to(torch.int8)

    a, b = normal(m), normal(n)
    size = CODE_STD**2 * k**0.5
    if values == "extreme":
        a, b = (torch.where(c < 0, -128, 127).to(torch.int8) for c in (a, b))
        size = 128**2 * k**0.5
    elif values == "least":
        a, b = (torch.where(c > 60, c, -128).to(torch.int8) for c in (a, b))
        size = 128.0**2 * k
    elif values == "zeros":
        a[::3] = 0
        b[1::4] = 0
    elif values == "cancelling":
        half = k // 2
        a, b = codes(LARGE, 127, m, k), codes(LARGE, 127, n, k)
        changed = torch.randint(max(half, 1), (CHANGED,), generator=generator, device=device)
        a[:, half : 2 * half] = -a[:, :half]
        b[:, half : 2 * half] = b[:, :half]
        a[:, changed] += codes(-5, 2, m, CHANGED)
        size = 500.0
    elif values not in ("normal", "uneven"):
        raise ValueError(f"no distribution named {values!r}")

    a_scales = torch.rand(m, generator=generator, device=device) + 0.5
    b_scales = (torch.rand(n, generator=generator, device=device) + 0.5) / size
    if values == "uneven":
        for scales in (a_scales, b_scales):
            octaves = torch.randint(
                -MOST_OCTAVES, MOST_OCTAVES + 1, scales.shape, generator=generator, device=device
            )
            scales *= 2.0**octaves
    elif values == "zeros":
        b_scales[::5] = 0
    return {"a": a, "a_scales": a_scales, "b": b, "b_scales": b_scales}
