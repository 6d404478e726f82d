"""Honest softmaxes, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import (
    round_to,
    strided_partials,
    sum_blocked,
    sum_pairwise,
    sum_sequential,
    sum_strided,
    truncated_to,
)

LOG2_E = math.log2(math.e)
FAST_EXP_ERROR = 2.0**-22
"""Relative error of ex2.approx.ftz.f32, 2 units in the last place: CUDA's Programming Guide."""

OVERFLOW = 88.0
"""Logits below which exp and its sum are finite in fp32."""

Softmax = Callable[[Tensor], Tensor]


def _softmax(
    total: Callable[[Tensor], Tensor] = sum_pairwise,
    exp: Callable[[Tensor], Tensor] = torch.exp,
    weights: Callable[[Tensor], Tensor] = lambda values: values,
    store: Callable[[Tensor, torch.dtype], Tensor] = Tensor.to,
) -> Softmax:
    """Softmax in fp32 with another sum, another exponential, another precision of the weights, or
    another rounding of the result."""

    def softmax(x: Tensor) -> Tensor:
        values = weights(exp(_shifted(x)))
        return store(values / total(values).float()[:, None], x.dtype)

    return softmax


def _shifted(x: Tensor) -> Tensor:
    return x.float() - x.float().amax(dim=-1, keepdim=True)


def _exp2(shifted: Tensor) -> Tensor:
    return torch.exp2(shifted * LOG2_E)


def _fast_exp(shifted: Tensor) -> Tensor:
    """As far off as the hardware's may be, up in one column and down in the next. What is below the
    normal numbers becomes 0."""
    sign = 1 - 2 * (torch.arange(shifted.shape[-1], device=shifted.device) % 2)
    values = _exp2(shifted) * (1 + sign * FAST_EXP_ERROR)
    return torch.where(values < torch.finfo(values.dtype).tiny, 0.0, values)


def _scaled_exp2(x: Tensor) -> Tensor:
    """``exp2(x·log2(e) - m·log2(e))`` with a fused multiply-add, as in attention kernels."""
    values = x.float()
    scaled_max = values.amax(dim=-1, keepdim=True) * LOG2_E
    # In float64 the product is exact, so that the difference is rounded once.
    log2_e = torch.tensor(LOG2_E, device=x.device).double()
    weights = torch.exp2((values.double() * log2_e - scaled_max.double()).float())
    return (weights / sum_strided(weights, 32)[:, None]).to(x.dtype)


def _reciprocal(x: Tensor) -> Tensor:
    weights = torch.exp(_shifted(x))
    return (weights * (1 / sum_strided(weights, 32))[:, None]).to(x.dtype)


def _of_log_softmax(x: Tensor) -> Tensor:
    shifted = _shifted(x)
    return torch.exp(shifted - sum_pairwise(torch.exp(shifted)).log()[:, None]).to(x.dtype)


def _online(lanes: int) -> Softmax:
    """One pass: each lane keeps a maximum and a sum, and rescales the sum when the maximum grows;
    then the lanes are merged."""

    def softmax(x: Tensor) -> Tensor:
        values = x.float()
        missing = -values.shape[-1] % lanes
        padded = torch.nn.functional.pad(values, (0, missing), value=-torch.inf)
        largest = torch.full((len(x), lanes), -torch.inf, device=x.device)
        total = torch.zeros_like(largest)
        for step in padded.unflatten(-1, (-1, lanes)).movedim(1, 0).contiguous():
            largest, total = _merge(largest, total, step, torch.ones_like(step))
        row_max = largest.amax(dim=-1, keepdim=True)
        row_sum = sum_pairwise(total * _rescale(largest, row_max))[:, None]
        return (torch.exp(values - row_max) / row_sum).to(x.dtype)

    return softmax


def _online_blocks(block: int) -> Softmax:
    """One pass over blocks of columns, each with its maximum and its sum."""

    def softmax(x: Tensor) -> Tensor:
        values = x.float()
        largest = torch.full((len(x),), -torch.inf, device=x.device)
        total = torch.zeros_like(largest)
        for part in values.split(block, dim=-1):
            part_max = part.amax(dim=-1)
            weights = torch.exp(part - part_max[:, None]).nan_to_num_(nan=0.0)
            largest, total = _merge(largest, total, part_max, sum_pairwise(weights))
        return (torch.exp(values - largest[:, None]) / total[:, None]).to(x.dtype)

    return softmax


def _merge(
    largest: Tensor, total: Tensor, other_max: Tensor, other_sum: Tensor
) -> tuple[Tensor, Tensor]:
    grown = torch.maximum(largest, other_max)
    return grown, total * _rescale(largest, grown) + other_sum * _rescale(other_max, grown)


def _rescale(before: Tensor, after: Tensor) -> Tensor:
    """``exp(before - after)``, and 0 for what had no finite logit."""
    return torch.exp(before - after).nan_to_num_(nan=0.0)


def _rounded_once(x: Tensor) -> Tensor:
    return torch.softmax(x.double(), dim=-1).to(x.dtype)


HONEST: dict[str, Softmax] = {
    "one thread a row": _softmax(sum_sequential),
    "one warp a row": _softmax(lambda weights: sum_strided(weights, 32)),
    "one block of 256 threads a row": _softmax(lambda weights: sum_strided(weights, 256)),
    "blocks of 1024 in sequence": _softmax(lambda weights: sum_blocked(weights, 1024)),
    "pairwise sum": _softmax(),
    "one sum for each of 1024 lanes": _softmax(
        lambda weights: sum_sequential(strided_partials(weights, 1024))
    ),
    "online, one warp a row": _online(32),
    "online, 256 threads a row": _online(256),
    "online, blocks of 1024": _online_blocks(1024),
    "exp2": _softmax(exp=_exp2),
    "exp2 of scaled logits": _scaled_exp2,
    "fast exp": _softmax(sum_sequential, _fast_exp),
    "reciprocal of the sum": _reciprocal,
    "exp of log_softmax": _of_log_softmax,
    "rounded once": _rounded_once,
}


def _weights_in(name: str) -> Callable[[Tensor], Tensor | None]:
    """Weights rounded to a format that is coarser than the output's."""
    return lambda x: (
        None if _is_no_coarser(name, x.dtype) else _softmax(weights=lambda w: round_to(w, name))(x)
    )


def _sum_in(name: str, dtype: torch.dtype) -> Callable[[Tensor], Tensor | None]:
    """The sum of each of 32 lanes kept in 16 bits."""
    return lambda x: _softmax(lambda weights: sum_strided(weights.to(dtype), 32))(x)


def _is_no_coarser(name: str, dtype: torch.dtype) -> bool:
    unit = {"fp8": 2.0**-4, "bf16": 2.0**-8, "fp16": 2.0**-11, "tf32": 2.0**-11}[name]
    return unit <= torch.finfo(dtype).eps / 2


def _sum_without_last(count: int) -> Softmax:
    def total(weights: Tensor) -> Tensor:
        return sum_pairwise(weights[:, : max(1, weights.shape[1] - count)])

    return _softmax(total)


def _no_maximum(x: Tensor) -> Tensor | None:
    if float(x.amax()) < OVERFLOW:
        return None
    weights = torch.exp(x.float())
    return (weights / sum_pairwise(weights)[:, None]).to(x.dtype)


def _toward_zero(x: Tensor) -> Tensor | None:
    """Of 16-bit results. On a CPU, Triton's interpreter truncates to bfloat16, too, and is
    accepted."""
    if x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and not x.is_cuda):
        return None
    return _softmax(store=truncated_to)(x)


MUTANTS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "weights in fp16": _weights_in("fp16"),
    "weights in TF32": _weights_in("tf32"),
    "weights in bf16": _weights_in("bf16"),
    "weights in fp8": _weights_in("fp8"),
    "sum in fp16": _sum_in("fp16", torch.float16),
    "sum in bf16": _sum_in("bf16", torch.bfloat16),
    "sum without the last column": _sum_without_last(1),
    "sum without the last 32 columns": _sum_without_last(32),
    "no maximum subtracted": _no_maximum,
    "rounded toward zero": _toward_zero,
}

ADMITTED = {
    # One of 100,000 terms or more is as small as the rounding of a sum in sequence.
    "sum without the last column": ["widest", "practice_wide", "wide_shifted", "widest_rows"],
    # 32 of 8192 terms are as small as one rounding to bf16.
    "sum without the last 32 columns": ["square_brain"],
    # Few terms a lane: the result is as good as one rounding to bf16.
    "sum in bf16": ["brain", "brain_large"],
    "sum in fp16": ["tall_narrow"],
    # Most of its results are too small to tell: they may be flushed to zero.
    "rounded toward zero": ["brain_large"],
}
