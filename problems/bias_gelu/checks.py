"""Honest kernels for bias and GELU, which the check must accept, and broken ones, which it must
reject."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import (
    computed_in,
    elementwise_honest,
    elementwise_mutants,
    fast_exp,
    fast_tanh,
)

SCALE = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def _inner(v: Tensor) -> Tensor:
    return SCALE * (v + CUBIC * v * v * v)


def _gelu(v: Tensor, tanh: Callable[[Tensor], Tensor] = torch.tanh) -> Tensor:
    return 0.5 * v * (1 + tanh(_inner(v)))


def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return _gelu(x + bias)


def magnitude(x: Tensor, bias: Tensor) -> Tensor:
    """What rounding errors are relative to: both terms of ``v/2 + v/2·tanh(u)``. The sum v of two
    numbers of a dtype is exact in fp32, or rounded once."""
    v = x + bias
    return 0.5 * v.abs() * (1 + torch.tanh(_inner(v)).abs())


def _of_sum(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """`function` of the sum, in fp32."""

    def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
        return function(x + bias)

    return computed_in(bias_gelu, torch.float32)


def _rounded_sum(x: Tensor, bias: Tensor) -> Tensor:
    """Two kernels, the sum between them in memory."""
    return _gelu((x + bias).float()).to(x.dtype)


HONEST = elementwise_honest(_bias_gelu) | {
    "of sigmoid": _of_sum(lambda v: v / (1 + torch.exp(-2 * _inner(v)))),
    "of sigmoid, fast exp": _of_sum(lambda v: v / (1 + fast_exp(-2 * _inner(v)))),
    "rounded sum": _rounded_sum,
}


def _fast_tanh(x: Tensor, bias: Tensor) -> Tensor | None:
    """In 16 bits a rounded sum may be as far off."""
    fast = _of_sum(lambda v: _gelu(v, fast_tanh))
    return fast(x=x, bias=bias) if x.dtype == torch.float32 else None


def _erf(x: Tensor, bias: Tensor) -> Tensor | None:
    """In bf16 a rounded sum may be as far off."""
    exact = torch.nn.functional.gelu(x.float() + bias.float()).to(x.dtype)
    return None if x.dtype == torch.bfloat16 else exact


def _bias_by_row(x: Tensor, bias: Tensor) -> Tensor | None:
    """Indexed by the row instead of the column."""
    if len(bias) == 1:
        return None
    row = torch.arange(x.shape[0], device=x.device) % len(bias)
    return _bias_gelu(x.float(), bias.float()[row, None]).to(x.dtype)


def _bias_after(x: Tensor, bias: Tensor) -> Tensor:
    return (_gelu(x.float()) + bias.float()).to(x.dtype)


MUTANTS = elementwise_mutants(_bias_gelu) | {
    "hardware's approximate tanh": _fast_tanh,
    "erf instead of tanh": _erf,
    "no bias": lambda x, bias: _gelu(x.float()).to(x.dtype),
    "bias of the row": _bias_by_row,
    "bias after GELU": _bias_after,
}
