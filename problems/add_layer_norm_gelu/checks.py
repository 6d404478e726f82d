"""Honest chains of sum, LayerNorm and GELU, which the check must accept, and broken ones, which it
must reject."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from grader.numerics import (
    ROW_STATISTICS,
    alternately_off,
    mean_of_squares,
    round_to,
    sum_in,
    two_pass,
)

FAST_RSQRT_ERROR = 2.0**-22
"""Relative error of rsqrt.approx.ftz.f32: PTX ISA."""
STEEPEST = 1.13
"""The largest slope of GELU."""

Statistics = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Mean and variance [rows] of values [rows, cols] in fp32."""
Chain = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
Mutant = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor | None]


def magnitude(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """What the rounding errors are relative to: those of LayerNorm (layer_norm/checks.py) times the
    slope of GELU, and those of GELU relative to its argument."""
    total = x + residual
    deviation = total - total.mean(-1, keepdim=True)
    root = (deviation.square().mean(-1, keepdim=True) + eps).rsqrt()
    condition = total.square().mean(-1, keepdim=True).sqrt() * root
    size = root * (total.abs() + total.abs().mean(-1, keepdim=True))
    inner = weight.abs() * (size + (deviation * root).abs() * condition) + bias.abs()
    return STEEPEST * inner + (weight * deviation * root + bias).abs()


def _chain(
    statistics: Statistics = two_pass,
    rsqrt: Callable[[Tensor], Tensor] = torch.rsqrt,
    activation: Callable[[Tensor], Tensor] = gelu,
    total: Callable[[Tensor, Tensor], Tensor] = torch.add,
) -> Chain:
    """The chain in fp32 with one of its parts replaced."""

    def chain(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        values = total(x.float(), residual.float())
        mean, variance = statistics(values)
        normal = (values - mean[:, None]) * rsqrt(variance + eps)[:, None]
        return activation(normal * weight.float() + bias.float()).to(x.dtype)

    return chain


# --- honest


def _by_erfc(normal: Tensor) -> Tensor:
    return normal / 2 * torch.erfc(normal * -math.sqrt(0.5))


def _rounded_sum(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The sum is rounded to the dtype of the inputs, as where it is kept for the next layer."""
    return _chain()((x + residual), torch.zeros_like(x), weight, bias, eps)


def _rounded_once(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    total = x.double() + residual.double()
    deviation = total - total.mean(-1, keepdim=True)
    root = (deviation.square().mean(-1, keepdim=True) + eps).sqrt()
    return gelu(deviation / root * weight.double() + bias.double()).to(x.dtype)


HONEST: dict[str, Chain] = {
    **{name: _chain(statistics) for name, statistics in ROW_STATISTICS.items()},
    "fast rsqrt": _chain(rsqrt=lambda v: alternately_off(v.rsqrt(), FAST_RSQRT_ERROR)),
    "GELU by erfc": _chain(activation=_by_erfc),
    "sum rounded": _rounded_sum,
    "rounded once": _rounded_once,
}


# --- broken


def _where(applies: Callable[[Tensor, float], bool], mutant: Chain) -> Mutant:
    """The mutant on sums for which it is off by more than rounding; None elsewhere."""

    def known(
        x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor | None:
        total = x.double() + residual.double()
        fine = applies(total.to(torch.promote_types(x.dtype, torch.float32)), eps)
        return mutant(x, residual, weight, bias, eps) if fine else None

    return known


def _single(applies: Callable[[Tensor, float], bool], mutant: Chain) -> Mutant:
    """As `_where`, in fp32 only: in 16 bits it is as small as rounding."""
    known = _where(applies, mutant)
    return lambda x, residual, weight, bias, eps: (
        known(x, residual, weight, bias, eps) if x.dtype == torch.float32 else None
    )


def _is_shifted(total: Tensor, eps: float) -> bool:
    deviations = (total.double().var(-1, correction=0) + eps).sqrt()
    return bool((total.double().mean(-1).abs() > 300 * deviations).any())


def _eps_matters(total: Tensor, eps: float) -> bool:
    """It is a part of some row's variance, and not all of it."""
    variance = total.double().var(-1, correction=0)
    return bool(((variance < 10 * eps) & (variance > 1e-3 * eps)).any())


def _is_short(total: Tensor, eps: float) -> bool:
    """A row of ordinary mean that is short enough for the bias of its variance, or a GELU that is
    off by 5e-4, to be more than rounding."""
    return not _is_shifted(total, eps) and 16 <= total.shape[1] <= 300


def _is_ordinary(total: Tensor, eps: float) -> bool:
    """Rows of ordinary mean, of enough elements that one is rounded by much."""
    return not _is_shifted(total, eps) and total.shape[1] >= 16


def _always(total: Tensor, eps: float) -> bool:
    return True


def _without_eps(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _chain()(x, residual, weight, bias, 0.0)


def _eps_outside(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    def rsqrt(variance: Tensor) -> Tensor:
        return 1 / ((variance - eps).clamp(min=0).sqrt() + eps)

    return _chain(rsqrt=rsqrt)(x, residual, weight, bias, eps)


def _corrected(values: Tensor) -> tuple[Tensor, Tensor]:
    """The unbiased variance."""
    mean, variance = two_pass(values)
    return mean, variance * (values.shape[1] / max(1, values.shape[1] - 1))


def _has_rows(total: Tensor, eps: float) -> bool:
    return len(total) > 1


def _row_above(values: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = two_pass(values)
    return mean.roll(1), variance.roll(1)


def _added_last(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The residual is added to the result."""
    return _chain()(x, torch.zeros_like(x), weight, bias, eps) + residual


def _sums_in(dtype: torch.dtype) -> Mutant:
    return _single(_always, _chain(partial(two_pass, total=partial(sum_in, dtype=dtype))))


def _normal_in(name: str) -> Mutant:
    return _single(_is_ordinary, _chain(activation=lambda normal: gelu(round_to(normal, name))))


MUTANTS: dict[str, Mutant] = {
    "mean of squares less squared mean": _single(_is_shifted, _chain(mean_of_squares)),
    "no eps": _where(_eps_matters, _without_eps),
    "eps outside the root": _where(_eps_matters, _eps_outside),
    "divided by n - 1": _single(_is_short, _chain(_corrected)),
    "sums in fp16": _sums_in(torch.float16),
    "sums in bf16": _sums_in(torch.bfloat16),
    "statistics of the row above": _where(_has_rows, _chain(_row_above)),
    "no residual": _chain(total=lambda x, residual: x),
    "residual twice": _chain(total=lambda x, residual: x + 2 * residual),
    "residual added last": _added_last,
    "no weight": lambda x, residual, weight, bias, eps: _chain()(
        x, residual, torch.ones_like(weight), bias, eps
    ),
    "no bias": lambda x, residual, weight, bias, eps: _chain()(
        x, residual, weight, torch.zeros_like(bias), eps
    ),
    "no GELU": _chain(activation=lambda normal: normal),
    "SiLU instead of GELU": _chain(activation=silu),
    "GELU by tanh": _single(_is_short, _chain(activation=partial(gelu, approximate="tanh"))),
    "normalized rows in fp16": _normal_in("fp16"),
    "normalized rows in bf16": _normal_in("bf16"),
}
ADMITTED = {
    # A sum of one term.
    "sums in fp16": ["one_element"],
}
