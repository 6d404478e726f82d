"""Honest LayerNorms, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grader.numerics import (
    ROW_STATISTICS,
    alternately_off,
    mean_of_squares,
    sum_in,
    sum_pairwise,
    two_pass,
)

FAST_RSQRT_ERROR = 2.0**-22
"""Relative error of rsqrt.approx.ftz.f32: PTX ISA."""

Statistics = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Mean and variance [rows] of values [rows, cols] in fp32."""
LayerNorm = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def magnitude(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """What the rounding errors are relative to.

    A mean in fp32 is off by roundings of the mean absolute value, and the variance, relative to
    itself, by the condition number of the row: Chan, Golub and LeVeque (1983).
    """
    deviation = x - x.mean(-1, keepdim=True)
    root = (deviation.square().mean(-1, keepdim=True) + eps).rsqrt()
    condition = x.square().mean(-1, keepdim=True).sqrt() * root
    size = root * (x.abs() + x.abs().mean(-1, keepdim=True))
    return weight.abs() * (size + (deviation * root).abs() * condition) + bias.abs()


def _layer_norm(
    statistics: Statistics, rsqrt: Callable[[Tensor], Tensor] = torch.rsqrt
) -> LayerNorm:
    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        values = x.float()
        mean, variance = statistics(values)
        normal = (values - mean[:, None]) * rsqrt(variance + eps)[:, None]
        return (normal * weight.float() + bias.float()).to(x.dtype)

    return layer_norm


# --- honest


def _rounded_once(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    deviation = x.double() - x.double().mean(-1, keepdim=True)
    root = (deviation.square().mean(-1, keepdim=True) + eps).sqrt()
    return (deviation / root * weight.double() + bias.double()).to(x.dtype)


HONEST: dict[str, LayerNorm] = {
    **{name: _layer_norm(statistics) for name, statistics in ROW_STATISTICS.items()},
    "fast rsqrt": _layer_norm(two_pass, lambda v: alternately_off(v.rsqrt(), FAST_RSQRT_ERROR)),
    "rounded once": _rounded_once,
}


# --- broken

Mutant = Callable[[Tensor, Tensor, Tensor, float], Tensor | None]


def _where(applies: Callable[[Tensor, float], bool], mutant: LayerNorm) -> Mutant:
    """The mutant on inputs for which it is off by more than rounding; None elsewhere."""
    return lambda x, weight, bias, eps: mutant(x, weight, bias, eps) if applies(x, eps) else None


def _is_shifted(x: Tensor, eps: float) -> bool:
    deviations = (x.double().var(-1, correction=0) + eps).sqrt()
    return x.dtype != torch.bfloat16 and bool((x.double().mean(-1).abs() > 500 * deviations).any())


def _without_eps(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _layer_norm(two_pass)(x, weight, bias, 0.0)


def _eps_outside(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    def rsqrt(variance: Tensor) -> Tensor:
        return 1 / ((variance - eps).clamp(min=0).sqrt() + eps)

    return _layer_norm(two_pass, rsqrt)(x, weight, bias, eps)


def _eps_matters(x: Tensor, eps: float) -> bool:
    """It is a part of some row's variance, and not all of it."""
    variance = x.double().var(-1, correction=0)
    return bool(((variance < 10 * eps) & (variance > 1e-3 * eps)).any())


def _sum_in(dtype: torch.dtype) -> Mutant:
    statistics = partial(two_pass, total=partial(sum_in, dtype=dtype))
    return _where(_is_single, _layer_norm(statistics))


def _is_single(x: Tensor, eps: float) -> bool:
    varies = bool((x.double().var(-1, correction=0) > 1e-3 * eps).any())
    return x.dtype == torch.float32 and varies


def _corrected(values: Tensor) -> tuple[Tensor, Tensor]:
    """The unbiased variance."""
    mean, variance = two_pass(values)
    return mean, variance * (values.shape[1] / max(1, values.shape[1] - 1))


def _is_short(x: Tensor, eps: float) -> bool:
    """The bias of the variance is more than rounding."""
    return _is_single(x, eps) and not _is_shifted(x, eps) and 1 < x.shape[1] <= 600


def _has_rows(x: Tensor, eps: float) -> bool:
    return len(x) > 1


def _row_above(values: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = two_pass(values)
    return mean.roll(1), variance.roll(1)


MUTANTS: dict[str, Mutant] = {
    "mean of squares less squared mean": _where(_is_shifted, _layer_norm(mean_of_squares)),
    "no eps": _where(_eps_matters, _without_eps),
    "eps outside the root": _where(_eps_matters, _eps_outside),
    "divided by n - 1": _where(_is_short, _layer_norm(_corrected)),
    "sums in fp16": _sum_in(torch.float16),
    "sums in bf16": _sum_in(torch.bfloat16),
    "statistics of the row above": _where(_has_rows, _layer_norm(_row_above)),
    "no mean": _layer_norm(lambda v: (torch.zeros_like(v[:, 0]), sum_pairwise(v * v) / v.shape[1])),
    "no weight": lambda x, weight, bias, eps: _layer_norm(two_pass)(
        x, torch.ones_like(weight), bias, eps
    ),
    "no bias": lambda x, weight, bias, eps: _layer_norm(two_pass)(
        x, weight, torch.zeros_like(bias), eps
    ),
}
