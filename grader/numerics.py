"""Sums in a stated order and precision, for honest implementations and mutants in a problem's
`checks.py`. Every sum runs along the last axis, in the dtype of its terms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

COARSE = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}
"""Formats of `round_to`, besides ``tf32``."""
_TF32_DROPPED_BITS = 13


def sum_sequential(terms: Tensor) -> Tensor:
    """One accumulator, from the first term to the last: one thread a row."""
    return sum_strided(terms, 1)


def sum_strided(terms: Tensor, lanes: int) -> Tensor:
    """`lanes` accumulators, each over every `lanes`-th term, then added pairwise: one warp or one
    block of threads a row."""
    return sum_pairwise(strided_partials(terms, lanes))


def strided_partials(terms: Tensor, lanes: int) -> Tensor:
    """The accumulators [..., lanes] of `sum_strided`."""
    steps = _padded(terms, lanes).unflatten(-1, (-1, lanes)).movedim(-2, 0).contiguous()
    if steps.device.type == "cpu" and steps.dtype == torch.float32:
        # A running sum in fp32, one term after the other, without a call for each.
        return torch.from_numpy(np.add.accumulate(steps.numpy(), axis=0)[-1])
    total = torch.zeros_like(steps[0])
    for step in steps:
        total += step
    return total


def sum_blocked(terms: Tensor, block: int) -> Tensor:
    """Blocks of `block` terms in sequence, each summed pairwise: a loop over tiles."""
    return sum_sequential(sum_pairwise(_padded(terms, block).unflatten(-1, (-1, block))))


def sum_pairwise(terms: Tensor) -> Tensor:
    """A binary tree over all terms."""
    while terms.shape[-1] > 1:
        terms = _padded(terms, 2)
        terms = terms[..., 0::2] + terms[..., 1::2]
    return terms[..., 0]


def matmul_in_steps(a: Tensor, b: Tensor, step: int) -> Tensor:
    """``a @ b`` of [m, k] and [k, n], with one accumulator for each output and `step` terms of k
    added at a time."""
    total = a.new_zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], step):
        total += a[:, start : start + step] @ b[start : start + step]
    return total


def round_to(values: Tensor, name: str) -> Tensor:
    """Values rounded to nearest in a format, ``tf32`` or one of `COARSE`; the dtype stays."""
    if name != "tf32":
        return values.to(COARSE[name]).to(values.dtype)
    bits = values.float().contiguous().view(torch.int32)
    last = (bits >> _TF32_DROPPED_BITS) & 1
    half = (1 << (_TF32_DROPPED_BITS - 1)) - 1
    rounded = (bits + half + last) & -(1 << _TF32_DROPPED_BITS)
    return torch.where(torch.isfinite(values), rounded.view(torch.float32), values).to(values.dtype)


def truncated_to(values: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 values rounded toward zero to a narrower dtype."""
    nearest = values.to(dtype)
    below = torch.nextafter(nearest, torch.zeros_like(nearest))
    return torch.where(nearest.double().abs() > values.double().abs(), below, nearest)


def _padded(terms: Tensor, multiple: int) -> Tensor:
    missing = -terms.shape[-1] % multiple
    return torch.nn.functional.pad(terms, (0, missing)) if missing else terms


# --- statistics of rows


SUM_ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "one thread a row": sum_sequential,
    "one warp a row": partial(sum_strided, lanes=32),
    "one block of 256 threads a row": partial(sum_strided, lanes=256),
    "blocks of 1024 in sequence": partial(sum_blocked, block=1024),
    "pairwise": sum_pairwise,
}
"""Orders in which honest kernels sum a row, by what they are called."""


def welford(terms: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of each row in one pass: each of `lanes`, a power of 2, updates its own,
    then halves of the lanes are merged. Welford (1962); Chan, Golub and LeVeque (1983)."""
    mean = terms.new_zeros(*terms.shape[:-1], lanes)
    spread, count = torch.zeros_like(mean), torch.zeros_like(mean)
    for step in terms.split(lanes, dim=-1):
        some = slice(0, step.shape[-1])
        count[..., some] += 1
        away = step - mean[..., some]
        mean[..., some] += away / count[..., some]
        spread[..., some] += away * (step - mean[..., some])
    while mean.shape[-1] > 1:
        (mean, other), (spread, other_spread) = mean.chunk(2, -1), spread.chunk(2, -1)
        count, other_count = count.chunk(2, -1)
        away, both = other - mean, (count + other_count).clamp(min=1)
        mean = mean + away * (other_count / both)
        spread = spread + other_spread + away * away * (count * other_count / both)
        count = count + other_count
    return mean[..., 0], spread[..., 0] / terms.shape[-1]


def two_pass(
    terms: Tensor, total: Callable[[Tensor], Tensor] = sum_pairwise
) -> tuple[Tensor, Tensor]:
    """Mean and variance of each row: the mean first, then the mean of the squared deviations."""
    mean = total(terms) / terms.shape[-1]
    deviation = terms - mean[..., None]
    return mean, total(deviation * deviation) / terms.shape[-1]


def mean_of_squares(terms: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each row, the latter as the mean of the squares less the square of the
    mean: what they have in common cancels, so that no kernel should do it."""
    mean = sum_pairwise(terms) / terms.shape[-1]
    square = sum_pairwise(terms * terms) / terms.shape[-1]
    return mean, (square - mean * mean).clamp(min=0)


ROW_STATISTICS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    **{f"two passes, {name}": partial(two_pass, total=total) for name, total in SUM_ORDERS.items()},
    "Welford, one warp a row": partial(welford, lanes=32),
    "Welford, 256 threads a row": partial(welford, lanes=256),
}
"""Ways in which honest kernels compute mean and variance of a row, by what they are called."""


def off_by(values: Tensor, relative: float) -> Tensor:
    """Values as far off as a fast intrinsic's may be: up in one column and down in the next."""
    sign = 1 - 2 * (torch.arange(values.shape[-1], device=values.device) % 2)
    return values * (1 + sign * relative)


def sum_in(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """A sum whose terms and accumulators, one for each of 32 lanes, are of a narrow dtype."""
    return sum_strided(terms.to(dtype), 32).to(terms.dtype)
