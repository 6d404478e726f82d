"""Honest squares, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

import torch
from torch import Tensor

from grader.numerics import elementwise_honest, elementwise_mutants


def _square(x: Tensor) -> Tensor:
    return x * x


def _power(x: Tensor) -> Tensor:
    return torch.pow(x.float(), 2).to(x.dtype)


def _keeps_the_sign(x: Tensor) -> Tensor:
    return x * x.abs()


def _of_the_transposed(x: Tensor) -> Tensor:
    """Rows and columns swapped in the address: ``x[col * rows + row]``."""
    return (x * x).reshape(x.shape[1], x.shape[0]).T.contiguous()


HONEST = elementwise_honest(_square) | {"power": _power}

MUTANTS = elementwise_mutants(_square) | {
    "sign kept": _keeps_the_sign,
    "column-major addresses": _of_the_transposed,
}
