"""Inputs of top k: one matrix, in one of several distributions. No NaN."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, k: int, values: str
) -> dict[str, Tensor]:
    """`x` [rows, cols] in fp32; `values` names the distribution, one of `DISTRIBUTIONS`."""
    x = torch.randn(rows, cols, generator=generator, device=generator.device)
    return {"x": DISTRIBUTIONS[values](x)}


def _normal(x: Tensor) -> Tensor:
    return x


def _equal(x: Tensor) -> Tensor:
    """One number throughout a row."""
    return x.copy_(x[:, :1].clone())


def _few(x: Tensor) -> Tensor:
    """Ties: about a dozen different numbers."""
    return x.mul_(2).round_()


def _ascending(x: Tensor) -> Tensor:
    """Every number is larger than all before it, and replaces one of the best so far."""
    return x.sort(dim=-1).values


def _descending(x: Tensor) -> Tensor:
    return x.sort(dim=-1, descending=True).values


def _negative(x: Tensor) -> Tensor:
    """Below zero throughout: what is filled up with zeros is found."""
    return x.abs_().neg_().sub_(1)


def _masked(x: Tensor) -> Tensor:
    """Mostly minus infinity, some rows more than k times; infinity and zeros of both signs too."""
    x[:, 1::2] = -torch.inf
    x[1::3, 3:] = -torch.inf
    x[2::3, x.shape[1] // 2] = torch.inf
    x[:, x.shape[1] - 1] = 0.0
    x[::2, 0] = -0.0
    return x


DISTRIBUTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": _normal,
    "equal": _equal,
    "few": _few,
    "ascending": _ascending,
    "descending": _descending,
    "negative": _negative,
    "masked": _masked,
}
