"""Inputs of the prefix sum: one vector, in one of several distributions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LARGE = 2.0**21


def generate(generator: torch.Generator, call: int, *, n: int, values: str) -> dict[str, Tensor]:
    """`x` [n] in fp32; `values` names the distribution, one of `DISTRIBUTIONS`.

    All but ``normal`` are whole numbers whose sums stay below 2^24, and so are exact in any order.
    """
    x = torch.randn(n, generator=generator, device=generator.device)
    return {"x": DISTRIBUTIONS[values](x)}


def _normal(x: Tensor) -> Tensor:
    return x


def _whole(x: Tensor) -> Tensor:
    """Whole numbers without 0, of either sign: the sums wander about 0."""
    return torch.copysign(x.abs().mul_(2).ceil_().clamp_(1, 8), x)


def _counts(x: Tensor) -> Tensor:
    """0, 1, 2, ...: the places at which things of different sizes go."""
    return x.abs_().floor_()


def _equal(x: Tensor) -> Tensor:
    """One whole number throughout, from 1 to 8."""
    return x.copy_(_whole(x[:1]).abs())


def _sparse(x: Tensor) -> Tensor:
    """Zeros but for one number in about a hundred: whole tiles change nothing, and few do."""
    return torch.where(x.abs() > 2.6, _whole(x), 0.0)


def _large_steps(x: Tensor) -> Tensor:
    """Whole numbers, and now and then a step far up, which the next one takes back."""
    x = _whole(x)
    steps = x[5::1009]
    steps[0::2] += LARGE
    steps[1::2] -= LARGE
    return x


def _special(x: Tensor) -> Tensor:
    """Infinity after two thirds, NaN (of two infinities) near the end; what is before is
    ordinary."""
    x = _whole(x)
    n = len(x)
    if n > 2:
        x[2 * n // 3] = torch.inf
        x[n - 1 - n // 10] = -torch.inf
    return x


DISTRIBUTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": _normal,
    "whole": _whole,
    "counts": _counts,
    "equal": _equal,
    "sparse": _sparse,
    "large_steps": _large_steps,
    "special": _special,
}
