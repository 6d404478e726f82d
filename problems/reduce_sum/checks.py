"""Honest row sums, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import (
    of_rounded_inputs,
    shifted_by_one,
    strided_partials,
    sum_blocked,
    sum_pairwise,
    sum_sequential,
    sum_strided,
)

LONGEST = 1 << 17
"""Columns beyond which no kernel gives a row to one thread or warp."""

Sum = Callable[[Tensor], Tensor]


def magnitude(x: Tensor) -> Tensor:
    """What rounding errors are relative to: the sum of the absolute values."""
    return x.abs().sum(dim=-1)


def _sum(total: Sum) -> Callable[..., Tensor]:
    """The terms in fp32, and their sum in some order."""

    def reduce_sum(x: Tensor) -> Tensor:
        return total(x.float())

    return reduce_sum


def _of_short_rows(total: Sum) -> Callable[..., Tensor | None]:
    return lambda x: total(x.float()) if x.shape[1] <= LONGEST else None


HONEST: dict[str, Callable[..., Tensor | None]] = {
    "one thread a row": _of_short_rows(sum_sequential),
    "one warp a row": _of_short_rows(lambda terms: sum_strided(terms, 32)),
    "one block of 1024 threads a row": _sum(lambda terms: sum_strided(terms, 1024)),
    "blocks of 4096 in sequence": _sum(lambda terms: sum_blocked(terms, 4096)),
    "pairwise": _sum(sum_pairwise),
    "one sum for each of 128 lanes": _of_short_rows(
        lambda terms: sum_sequential(strided_partials(terms, 128))
    ),
    "rounded once": lambda x: x.double().sum(dim=-1).float(),
}


def _sum_in(dtype: torch.dtype) -> Callable[..., Tensor | None]:
    """Terms and sums in 16 bits, of 32 lanes."""

    def reduce_sum(x: Tensor) -> Tensor | None:
        return sum_strided(x.to(dtype), 32).float() if x.shape[1] > 2 else None

    return _of_short_rows_only(reduce_sum)


def _of_short_rows_only(mutant: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    return lambda x: mutant(x) if x.shape[1] <= LONGEST else None


def _without_last(count: int) -> Callable[..., Tensor | None]:
    """The last columns left out, of rows that have more."""
    return lambda x: x[:, :-count].float().sum(dim=-1) if x.shape[1] > count else None


def _without_tail(x: Tensor) -> Tensor | None:
    """A loop over whole tiles of 128 columns."""
    whole = x.shape[1] // 128 * 128
    return x[:, :whole].float().sum(dim=-1) if whole < x.shape[1] else None


MUTANTS: dict[str, Callable[..., Tensor | None]] = {
    "sum in fp16": _sum_in(torch.float16),
    "sum in bf16": _sum_in(torch.bfloat16),
    "terms in bf16": of_rounded_inputs(_sum(sum_pairwise), "bf16"),
    "without the last column": _without_last(1),
    "without the last 32 columns": _without_last(32),
    "without the tail": _without_tail,
    "absolute values": lambda x: x.float().abs().sum(dim=-1) if bool((x < 0).any()) else None,
    "mean": lambda x: x.float().mean(dim=-1),
    "shifted by one": shifted_by_one(_sum(sum_pairwise)),
}

ADMITTED = {
    # Errors of many rounded terms cancel: the sum is as good as one of unrounded terms in sequence.
    "terms in bf16": ["one_row", "wide", "practice", "small", "square", "few_long", "longest"],
    # A few of 65,537 terms or more are as small as the rounding of a sum in sequence.
    "without the last column": ["wide", "few_long", "longest"],
    "without the last 32 columns": ["few_long", "longest"],
    "without the tail": ["wide", "longest"],
}
