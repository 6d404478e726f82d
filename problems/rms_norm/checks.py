"""Honest RMSNorms, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import SUM_ORDERS, alternately_off, sum_in, sum_pairwise

FAST_RSQRT_ERROR = 2.0**-22
"""Relative error of rsqrt.approx.ftz.f32: PTX ISA."""

RmsNorm = Callable[[Tensor, Tensor, float], Tensor]


def _rms_norm(
    total: Callable[[Tensor], Tensor] = sum_pairwise,
    rsqrt: Callable[[Tensor], Tensor] = torch.rsqrt,
) -> RmsNorm:
    """RMSNorm in fp32 with another sum or another reciprocal root."""

    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        values = x.float()
        mean_square = total(values * values)[:, None] / x.shape[1] + eps
        return (values * rsqrt(mean_square) * weight.float()).to(x.dtype)

    return rms_norm


# --- honest


def _of_fused_product(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The weight meets the reciprocal root first."""
    values = x.float()
    root = (sum_pairwise(values * values)[:, None] / x.shape[1] + eps).rsqrt()
    return (values * (root * weight.float())).to(x.dtype)


def _divided(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    values = x.float()
    root = (sum_pairwise(values * values * (1 / x.shape[1]))[:, None] + eps).sqrt()
    return (values / root * weight.float()).to(x.dtype)


def _rounded_before_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As in the models of Hugging Face's library."""
    values = x.float()
    normal = values * (sum_pairwise(values * values)[:, None] / x.shape[1] + eps).rsqrt()
    return normal.to(x.dtype) * weight


def _rounded_once(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    values = x.double()
    root = (values.square().mean(-1, keepdim=True) + eps).sqrt()
    return (values / root * weight.double()).to(x.dtype)


HONEST: dict[str, RmsNorm] = {
    **{name: _rms_norm(total) for name, total in SUM_ORDERS.items()},
    "fast rsqrt": _rms_norm(rsqrt=lambda v: alternately_off(v.rsqrt(), FAST_RSQRT_ERROR)),
    "weight times root first": _of_fused_product,
    "division by the root": _divided,
    "rounded before the weight": _rounded_before_weight,
    "rounded once": _rounded_once,
}


# --- broken


def _without_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor | None:
    small = bool((x.double().square().mean(-1) < 10 * eps).any())
    return _rms_norm()(x, weight, 0.0) if small else None


def _eps_outside(x: Tensor, weight: Tensor, eps: float) -> Tensor | None:
    square = x.double().square().mean(-1)
    if not bool(((square < 10 * eps) & (square > 1e-3 * eps)).any()):
        return None
    outside = _rms_norm(rsqrt=lambda square: 1 / ((square - eps).clamp(min=0).sqrt() + eps))
    return outside(x, weight, eps)


def _sum_of_all_but_one(x: Tensor, weight: Tensor, eps: float) -> Tensor | None:
    """The last column is left out of the sum."""
    squares = x.double().square()
    share = squares[:, -1] / (squares.sum(-1) + x.shape[1] * eps)
    least = 1e-3 if x.dtype == torch.float32 else 0.1
    if x.shape[1] == 1 or not bool((share > least).any()):
        return None  # it is as small as rounding
    return _rms_norm(lambda terms: sum_pairwise(terms[:, :-1]))(x, weight, eps)


def _divided_by_n_minus_1(x: Tensor, weight: Tensor, eps: float) -> Tensor | None:
    if x.dtype != torch.float32 or x.shape[1] > 1100 or x.shape[1] == 1:
        return None  # it is as small as rounding
    rest = x.shape[1] / (x.shape[1] - 1)
    return _rms_norm(lambda terms: sum_pairwise(terms) * rest)(x, weight, eps)


def _sum_in(dtype: torch.dtype) -> Callable[[Tensor, Tensor, float], Tensor | None]:
    return lambda x, weight, eps: (
        _rms_norm(lambda terms: sum_in(terms, dtype))(x, weight, eps)
        if x.dtype == torch.float32 and not _is_tiny(x, eps)
        else None
    )


def _is_tiny(x: Tensor, eps: float) -> bool:
    return bool((x.double().square().mean(-1) < 1e-3 * eps).all())


def _mean_subtracted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """LayerNorm in its place."""
    values = x.float()
    return _rms_norm()(values - values.mean(-1, keepdim=True), weight, eps).to(x.dtype)


def _row_above(x: Tensor, weight: Tensor, eps: float) -> Tensor | None:
    if len(x) == 1:
        return None
    return _rms_norm(lambda terms: sum_pairwise(terms).roll(1))(x, weight, eps)


MUTANTS: dict[str, Callable[[Tensor, Tensor, float], Tensor | None]] = {
    "no eps": _without_eps,
    "eps outside the root": _eps_outside,
    "sum without the last column": _sum_of_all_but_one,
    "divided by n - 1": _divided_by_n_minus_1,
    "sum in fp16": _sum_in(torch.float16),
    "sum in bf16": _sum_in(torch.bfloat16),
    "mean subtracted": _mean_subtracted,
    "statistics of the row above": _row_above,
    "no weight": lambda x, weight, eps: _rms_norm()(x, torch.ones_like(weight), eps),
}
