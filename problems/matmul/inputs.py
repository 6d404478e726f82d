"""Inputs of the matmul: two matrices, of one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
STEP = 16
"""Terms that cancel the next as many: the depth of one tensor core instruction."""
STEEP = 1.5
"""Size of a factor of `cancelling`. Sixteen terms then add up to about 15."""
MOST_CANCELLING = 2048
"""Terms that may cancel: tensor cores cut sums off instead of rounding them, so that the errors of
more steps add up to what a result's rounding is."""
MOST_OCTAVES = 2


def generate(
    generator: torch.Generator, call: int, *, m: int, k: int, n: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`a` [m, k] and `b` [k, n] of `dtype`, whose product has a size of about 1.

    `values` names the distribution: ``normal``; ``positive`` (nothing cancels); ``one_hot`` (a row
    of `a` picks a row of `b`); ``zeros`` (rows of `a` and columns of `b` are zero); ``equal`` (all
    elements of a matrix are one number); ``uneven`` (rows and columns differ by powers of two);
    ``cancelling`` (16 terms of k are large and positive, the next 16 nearly take them back).
    """
    device = generator.device
    a = torch.randn(m, k, generator=generator, device=device)
    b = torch.randn(k, n, generator=generator, device=device) / k**0.5

    if values == "positive":
        a, b = a.abs(), b.abs()
    elif values == "one_hot":
        picked = torch.randint(k, (m, 1), generator=generator, device=device)
        a = torch.zeros_like(a).scatter_(1, picked, 1.0)
        b *= k**0.5
    elif values == "zeros":
        a[::3] = 0
        b[:, 1::4] = 0
    elif values == "equal":
        a[:] = a.abs().mean() + 0.1
        b[:] = b.abs().mean() + 0.1 / k**0.5
    elif values == "uneven":
        a *= 2.0 ** _octaves(generator, m)[:, None]
        b *= 2.0 ** _octaves(generator, n)[None, :]
    elif values == "cancelling":
        a, b = _cancelling(a, b, DTYPES[dtype])
    elif values != "normal":
        raise ValueError(f"no distribution named {values!r}")
    return {"a": a.to(DTYPES[dtype]), "b": b.to(DTYPES[dtype])}


def _octaves(generator: torch.Generator, count: int) -> Tensor:
    size = (count,)
    return torch.randint(
        -MOST_OCTAVES, MOST_OCTAVES + 1, size, generator=generator, device=generator.device
    )


def _cancelling(a: Tensor, b: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A sum kept in 16 bits loses what remains; ranges of k that are multiples of 32, as split-K
    has them, add up to small numbers."""
    k = a.shape[1]
    size = min(k - k % (2 * STEP), MOST_CANCELLING)
    first, second = a[:, :size].unflatten(1, (-1, 2, STEP)).unbind(2)
    large = first.abs().to(dtype)
    small = second / (STEEP * (max(size, 2) / 2) ** 0.5)
    pairs = torch.stack((large, small - large), dim=2).flatten(1)
    weights = STEEP * k**0.5 * b[:size].abs().unflatten(0, (-1, 2, STEP))[:, :1]
    weights = weights.expand(-1, 2, -1, -1).flatten(0, 2)
    return torch.cat((pairs, a[:, size:]), dim=1), torch.cat((weights, b[size:]))
