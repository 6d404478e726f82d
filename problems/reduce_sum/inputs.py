"""Inputs of the row sums: one matrix, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [rows, cols] of `dtype`; `values` names the distribution, one of `DISTRIBUTIONS`. Every
    row has another scale, between 0.5 and 2, so that no two sums are alike."""
    x = torch.randn(rows, cols, generator=generator, device=generator.device)
    scale = torch.rand(rows, 1, generator=generator, device=generator.device) * 1.5 + 0.5
    return {"x": DISTRIBUTIONS[values](x, generator).mul_(scale).to(DTYPES[dtype])}


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return x


def _positive(x: Tensor, generator: torch.Generator) -> Tensor:
    """Nothing cancels: the sum grows, until a term is small beside it."""
    return x.abs_()


def _cancelling(x: Tensor, generator: torch.Generator) -> Tensor:
    """Pairs of large numbers, far apart, that take each other back: what they round off is lost."""
    half = x.shape[1] // 2
    x[:, :half] *= 100
    x[:, half : 2 * half] -= x[:, :half].flip(1)
    return x


def _one_hot(x: Tensor, generator: torch.Generator) -> Tensor:
    """One number in each row and zeros elsewhere: in the last column, or anywhere."""
    rows, cols = x.shape
    at = torch.randint(cols, (rows, 1), generator=generator, device=x.device)
    at[::2] = cols - 1
    return x.zero_().scatter_(1, at, 1.0)


def _equal(x: Tensor, generator: torch.Generator) -> Tensor:
    """One number throughout a row: every rounding error of a sum has the same sign."""
    return x.copy_(x[:, :1].clone())


def _tiny(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every other row ordinary; the others denormal, with denormal sums."""
    x[1::2] *= 1e-41
    return x


def _special(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rows with infinity, with both infinities (NaN), with NaN, with zeros only, and ordinary."""
    last = x.shape[1] - 1
    x[1::5, last] = torch.inf
    x[2::5, 0] = -torch.inf
    x[2::10, last] = torch.inf
    x[3::5, last // 2] = torch.nan
    x[4::5] = -0.0
    return x


DISTRIBUTIONS = {
    "normal": _normal,
    "positive": _positive,
    "cancelling": _cancelling,
    "one_hot": _one_hot,
    "equal": _equal,
    "tiny": _tiny,
    "special": _special,
}
