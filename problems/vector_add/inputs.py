"""Inputs of the vector addition: two vectors, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor


def generate(generator: torch.Generator, call: int, *, n: int, values: str) -> dict[str, Tensor]:
    """`x` and `y` [n] in fp32; `values` names the distribution, one of `DISTRIBUTIONS`."""
    x, y = (torch.randn(n, generator=generator, device=generator.device) for _ in range(2))
    return dict(zip(("x", "y"), DISTRIBUTIONS[values](x, y), strict=True))


def _normal(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, y


def _cancelling(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The sum is a ten-thousandth of its terms: what was rounded before is all that is left."""
    return x, y * 1e-4 - x


def _apart(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One term is a ten-thousandth of the other, sometimes `x` and sometimes `y`."""
    x[::2] *= 1e-4
    y[1::2] *= 1e-4
    return x, y


def _huge(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A third overflows to infinity."""
    return x.sign() * 3e38, y.mul_(1e38).clamp_(-3e38, 3e38)


def _special(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Infinities, their difference (NaN), NaN, and zeros of both signs, between ordinary values."""
    x[1::7] = torch.inf
    y[1::14] = -torch.inf
    y[2::7] = torch.nan
    x[3::7] = -0.0
    y[3::14] = 0.0
    x[4::7] = -torch.inf
    return x, y


def _tiny(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A third ordinary, a third denormal, a third with a denormal sum."""
    x[1::3] *= 1e-40
    y[1::3] *= 1e-40
    x[2::3] *= 1e-36
    y[2::3] = y[2::3] * 1e-40 - x[2::3]
    return x, y


DISTRIBUTIONS = {
    "normal": _normal,
    "cancelling": _cancelling,
    "apart": _apart,
    "huge": _huge,
    "special": _special,
    "tiny": _tiny,
}
