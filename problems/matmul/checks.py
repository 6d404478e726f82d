"""Honest matmuls, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grader.numerics import MATMUL_ORDERS, matmul_narrow, round_to

FEW = 64
"""Outputs below which an error of factors or sums looks like rounding."""

Product = Callable[[Tensor, Tensor], Tensor]
Mutant = Callable[..., Tensor | None]


def magnitude(a: Tensor, b: Tensor) -> Tensor:
    """Sum over k of ``|a·b|``, [m, n]."""
    return a.abs() @ b.abs()


def _matmul(product: Product) -> Product:
    """A matmul in fp32 with its own order of sums."""
    return lambda a, b: product(a.float(), b.float()).to(a.dtype)


def _rounded_once(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double()).to(a.dtype)


HONEST: dict[str, Product] = {
    **{name: _matmul(product) for name, product in MATMUL_ORDERS.items()},
    "rounded once": _rounded_once,
}


def _factors_in(name: str) -> Mutant:
    def mutant(a: Tensor, b: Tensor) -> Tensor | None:
        if a.shape[0] * b.shape[1] < FEW or (name == "bf16" and a.dtype == torch.bfloat16):
            return None
        return _matmul(lambda x, y: round_to(x, name) @ round_to(y, name))(a, b)

    return mutant


def _sum_in(dtype: torch.dtype) -> Mutant:
    """Only where partial sums are much larger than results does this show."""

    def mutant(a: Tensor, b: Tensor, values: str) -> Tensor | None:
        if values != "cancelling":
            return None
        return _matmul(partial(matmul_narrow, dtype=dtype))(a, b)

    return mutant


def _without_last(count: int) -> Mutant:
    def mutant(a: Tensor, b: Tensor, values: str) -> Tensor | None:
        if values == "one_hot" or a.shape[1] <= count:
            return None
        return _matmul(lambda x, y: x[:, :-count] @ y[:-count])(a, b)

    return mutant


def _lost_part(a: Tensor, b: Tensor, values: str) -> Tensor | None:
    """Of two halves of k, the second writes its sum over that of the first."""
    half = a.shape[1] // 2
    if half == 0 or values == "one_hot":
        return None
    return _matmul(lambda x, y: x[:, half:] @ y[half:])(a, b)


def _rows_as_columns(a: Tensor, b: Tensor) -> Tensor:
    """`b` read as if it were stored by columns."""
    return _matmul(torch.matmul)(a, b.reshape(b.shape[1], b.shape[0]).T)


MUTANTS: dict[str, Mutant] = {
    "factors in bf16": _factors_in("bf16"),
    "factors in fp8": _factors_in("fp8"),
    "sum in fp16": _sum_in(torch.float16),
    "sum in bf16": _sum_in(torch.bfloat16),
    "last of k left out": _without_last(1),
    "last 16 of k left out": _without_last(16),
    "one half of k lost": _lost_part,
    "rows of b taken for columns": _rows_as_columns,
}
ADMITTED = {
    # Of 1,000 positive terms, one is less than the rounding of the result, and so is the mean of
    # their errors.
    "factors in fp8": ["wide"],
    "last of k left out": ["wide"],
}
