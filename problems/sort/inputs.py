"""Inputs of the sort: one vector, in one of several distributions. No NaN."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def generate(generator: torch.Generator, call: int, *, n: int, values: str) -> dict[str, Tensor]:
    """`x` [n] in fp32; `values` names the distribution, one of `DISTRIBUTIONS`."""
    x = torch.randn(n, generator=generator, device=generator.device)
    return {"x": DISTRIBUTIONS[values](x)}


def _normal(x: Tensor) -> Tensor:
    return x


def _spread(x: Tensor) -> Tensor:
    """Of all magnitudes and both signs: every bit of the exponent counts."""
    return torch.copysign(torch.exp2(x * 40), x.flip(0))


def _special(x: Tensor) -> Tensor:
    """Infinities, the largest numbers, and zeros of both signs between ordinary numbers."""
    x[1::7] = torch.inf
    x[2::7] = -torch.inf
    x[3::7] = -0.0
    x[4::14] = 0.0
    x[5::14] = torch.finfo(x.dtype).max
    x[6::14] = torch.finfo(x.dtype).min
    return x


def _equal(x: Tensor) -> Tensor:
    return x.copy_(x[:1].clone())


def _few(x: Tensor) -> Tensor:
    """About a dozen different numbers: thousands of equal keys go into one bucket."""
    return x.mul_(2).round_()


def _ascending(x: Tensor) -> Tensor:
    return x.sort().values


def _descending(x: Tensor) -> Tensor:
    return x.sort(descending=True).values


def _tiny(x: Tensor) -> Tensor:
    """Denormal numbers of both signs, which flushing to zero would make equal."""
    return x.mul_(1e-39)


def _neighbours(x: Tensor) -> Tensor:
    """Numbers that differ in the last few bits only."""
    return 1 + (x * 100).round_() * torch.finfo(x.dtype).eps


DISTRIBUTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": _normal,
    "spread": _spread,
    "special": _special,
    "equal": _equal,
    "few": _few,
    "ascending": _ascending,
    "descending": _descending,
    "tiny": _tiny,
    "neighbours": _neighbours,
}
