"""Honest implementations, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

import torch
from torch import Tensor

from grader.numerics import Mutate, elementwise_honest, elementwise_mutants

from .reference import compute

HONEST = elementwise_honest(compute)
"""In fp32, and rounded once. Add other formulas of the same function, with fast exponentials."""


def _where_it_matters(broken: Mutate) -> Mutate:
    """None where a broken implementation changes nothing: a maximum is never rounded."""

    def mutant(x: Tensor) -> Tensor | None:
        result = broken(x=x)
        is_same = result is None or torch.equal(result, HONEST["in fp32"](x=x))
        return None if is_same else result

    return mutant


MUTANTS = {name: _where_it_matters(broken) for name, broken in elementwise_mutants(compute).items()}
"""Add mistakes that are easy to make with this function."""
