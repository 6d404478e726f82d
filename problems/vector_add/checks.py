"""Honest additions, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from torch import Tensor

from grader.numerics import elementwise_honest, elementwise_mutants, without_tail


def _add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def _difference(x: Tensor, y: Tensor) -> Tensor:
    return x - y


HONEST = elementwise_honest(_add)

MUTANTS = elementwise_mutants(_add) | {
    "last 4 left out": without_tail(_add, 4),
    "difference": _difference,
}
