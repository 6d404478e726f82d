"""Honest sums, which the check must accept, and broken ones, which it must reject."""

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
)

from .reference import terms

MANY_TERMS = 512
"""From here on, a sum in 16 bits is clearly worse than one rounding of the result."""
MANY_ROWS = 16
"""From here on, the rounding errors of some row do not cancel by chance."""


def magnitude(x: Tensor) -> Tensor:
    """The sum of the terms' absolute values, to which rounding errors are relative."""
    return terms(x).abs().sum(dim=-1)


def _sum(total: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: total(terms(x.float())).to(x.dtype)


HONEST: dict[str, Callable[[Tensor], Tensor]] = {
    "one thread a row": _sum(sum_sequential),
    "one warp a row": _sum(lambda values: sum_strided(values, 32)),
    "one block of 256 threads a row": _sum(lambda values: sum_strided(values, 256)),
    "blocks of 1024 in sequence": _sum(lambda values: sum_blocked(values, 1024)),
    "pairwise sum": _sum(sum_pairwise),
    "in fp64, rounded once": lambda x: terms(x.double()).sum(dim=-1).to(x.dtype),
}


def _terms_in_bf16(x: Tensor) -> Tensor | None:
    if x.dtype != torch.float32 or len(x) < MANY_ROWS:
        return None
    return sum_pairwise(round_to(terms(round_to(x, "bf16")), "bf16"))


def _sum_in(dtype: torch.dtype) -> Callable[[Tensor], Tensor | None]:
    """Each of 32 lanes keeps its sum in 16 bits."""

    def broken(x: Tensor) -> Tensor | None:
        if x.dtype != torch.float32 or len(x) < MANY_ROWS or x.shape[1] < MANY_TERMS:
            return None
        return sum_strided(terms(x).to(dtype), 32).to(x.dtype)

    return broken


def _without_last(x: Tensor) -> Tensor | None:
    """The last eighth of each row is not summed."""
    kept = x.shape[1] - x.shape[1] // 8
    return sum_pairwise(terms(x.float())[:, :kept]).to(x.dtype) if kept < x.shape[1] else None


def _first_row(x: Tensor) -> Tensor | None:
    """Every row gets the sum of the first."""
    return _sum(sum_pairwise)(x[:1].expand_as(x)) if len(x) > 1 else None


def _where_it_matters(
    broken: Callable[[Tensor], Tensor | None],
) -> Callable[[Tensor], Tensor | None]:
    """None where a broken implementation changes nothing: counts are exact in any precision."""

    def mutant(x: Tensor) -> Tensor | None:
        result = broken(x)
        return None if result is None or torch.equal(result, _sum(sum_pairwise)(x)) else result

    return mutant


MUTANTS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "terms in bf16": _where_it_matters(_terms_in_bf16),
    "sum in fp16": _where_it_matters(_sum_in(torch.float16)),
    "sum in bf16": _where_it_matters(_sum_in(torch.bfloat16)),
    "without the last eighth": _where_it_matters(_without_last),
    "the first row for all": _where_it_matters(_first_row),
}
