"""Honest GELUs, which the check must accept, and broken ones, which it must reject."""

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


def _inner(x: Tensor, scale: float = SCALE, cubic: float = CUBIC) -> Tensor:
    return scale * (x + cubic * x * x * x)


def _gelu(
    x: Tensor,
    tanh: Callable[[Tensor], Tensor] = torch.tanh,
    inner: Callable[[Tensor], Tensor] = _inner,
) -> Tensor:
    return 0.5 * x * (1 + tanh(inner(x)))


def magnitude(x: Tensor) -> Tensor:
    """What rounding errors are relative to: both terms of ``x/2 + x/2·tanh(u)``."""
    return 0.5 * x.abs() * (1 + torch.tanh(_inner(x)).abs())


def _in_fp32(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def gelu(x: Tensor) -> Tensor:
        return function(x)

    return computed_in(gelu, torch.float32)


def _of_sigmoid(exp: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """``x / (1 + exp(-2u))``: one exponential, and nothing cancels."""
    return lambda x: x / (1 + exp(-2 * _inner(x)))


def _of_exp(x: Tensor) -> Tensor:
    """The hyperbolic tangent by an exponential: ``1 - 2 / (1 + exp(2u))``."""
    return _gelu(x, lambda u: 1 - 2 / (1 + torch.exp(2 * u)))


def _nested(x: Tensor) -> Tensor:
    return _gelu(x, inner=lambda x: x * (SCALE + SCALE * CUBIC * (x * x)))


HONEST = elementwise_honest(_in_fp32(_gelu)) | {
    "of sigmoid": _in_fp32(_of_sigmoid(torch.exp)),
    "of sigmoid, fast exp": _in_fp32(_of_sigmoid(fast_exp)),
    "tanh of exp": _in_fp32(_of_exp),
    "nested polynomial": _in_fp32(_nested),
}

MUTANTS = elementwise_mutants(_gelu) | {
    "hardware's approximate tanh": _in_fp32(lambda x: _gelu(x, fast_tanh)),
    "erf instead of tanh": _in_fp32(lambda x: torch.nn.functional.gelu(x)),
    "sigmoid of 1.702 x": _in_fp32(lambda x: x * torch.sigmoid(1.702 * x)),
    "no cubic term": _in_fp32(lambda x: _gelu(x, inner=lambda x: SCALE * x)),
    "cubic term of 0.045": _in_fp32(lambda x: _gelu(x, inner=lambda x: _inner(x, cubic=0.045))),
    "scale of 0.8": _in_fp32(lambda x: _gelu(x, inner=lambda x: _inner(x, scale=0.8))),
}

# A single x may be so near to 0, or so far below, that these hardly differ.
ADMITTED = {
    name: ["one_element"]
    for name in ("hardware's approximate tanh", "erf instead of tanh", "cubic term of 0.045")
}
