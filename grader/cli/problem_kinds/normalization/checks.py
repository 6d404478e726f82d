"""Honest normalizations, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import (
    round_to,
    sum_blocked,
    sum_pairwise,
    sum_sequential,
    sum_strided,
    truncated_to,
)

from .reference import normalize

Implementation = Callable[[Tensor, Tensor], Tensor]
Mutant = Callable[[Tensor, Tensor], Tensor | None]

MANY = 512
"""Columns from which on statistics in 16 bits are clearly wrong."""


def magnitude(x: Tensor, weight: Tensor) -> Tensor:
    """To which rounding errors are relative: a result, or the row's spread, where a mean that was
    subtracted leaves a result near 0."""
    return normalize(x, weight, lambda terms: terms.sum(-1, keepdim=True)).abs() + weight.abs()


def _with(total: Callable[[Tensor], Tensor]) -> Implementation:
    """In fp32, with another sum [rows] of the terms [rows, cols]."""
    return lambda x, weight: _in_fp32(x, weight, total).to(x.dtype)


def _in_fp32(x: Tensor, weight: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    return normalize(x.float(), weight.float(), lambda terms: total(terms)[:, None])


def _in_fp64(x: Tensor, weight: Tensor) -> Tensor:
    wide = normalize(x.double(), weight.double(), lambda terms: terms.sum(-1, keepdim=True))
    return wide.to(x.dtype)


HONEST: dict[str, Implementation] = {
    "one thread a row": _with(sum_sequential),
    "one warp a row": _with(lambda terms: sum_strided(terms, 32)),
    "one block of 256 threads a row": _with(lambda terms: sum_strided(terms, 256)),
    "blocks of 1024 in sequence": _with(lambda terms: sum_blocked(terms, 1024)),
    "pairwise sum": _with(sum_pairwise),
    "in fp64, rounded once": _in_fp64,
}


def _x_in_bf16(x: Tensor, weight: Tensor) -> Tensor | None:
    if x.dtype != torch.float32:
        return None
    return _with(sum_pairwise)(round_to(x, "bf16"), weight)


def _statistics_in_bf16(x: Tensor, weight: Tensor) -> Tensor | None:
    """Each of 32 lanes keeps its sum in 16 bits."""
    if x.dtype != torch.float32 or x.shape[1] < MANY:
        return None
    return _with(lambda terms: sum_strided(terms.bfloat16(), 32).float())(x, weight)


def _without_last(x: Tensor, weight: Tensor) -> Tensor | None:
    """Statistics of all columns but the last eighth."""
    kept = x.shape[1] - x.shape[1] // 8
    if kept == x.shape[1]:
        return None
    return _with(lambda terms: sum_pairwise(terms[:, :kept]))(x, weight)


def _of_the_neighbour(x: Tensor, weight: Tensor) -> Tensor | None:
    """Statistics of the row before."""
    return _with(lambda terms: sum_pairwise(terms).roll(1, 0))(x, weight) if len(x) > 1 else None


def _toward_zero(x: Tensor, weight: Tensor) -> Tensor | None:
    """16-bit results, cut off instead of rounded. On a CPU, Triton's interpreter does so with
    bfloat16, and is accepted."""
    if x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and not x.is_cuda):
        return None
    return truncated_to(_in_fp32(x, weight, sum_pairwise), x.dtype)


MUTANTS: dict[str, Mutant] = {
    "x in bf16": _x_in_bf16,
    "statistics in bf16": _statistics_in_bf16,
    "statistics without the last eighth": _without_last,
    "statistics of the neighbour": _of_the_neighbour,
    "rounded toward zero": _toward_zero,
}
