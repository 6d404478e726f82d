"""What honest implementations and mutants in a problem's `checks.py` have in common.

Sums and prefix sums in a stated order and precision, each along the last axis and in the dtype of
its terms; functions of tensors computed in another precision; and usual mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

Compute = Callable[..., Tensor]
"""A problem's function: arguments by name → its only output."""
Mutate = Callable[..., Tensor | None]
"""As `Compute`; None where it has no meaning."""

COARSE = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}
"""Formats of `round_to`, besides ``tf32``."""
_TF32_DROPPED_BITS = 13
NEARLY_0 = 1e-6
"""A share of the largest result, a few roundings of fp32, that no check could tell from 0."""
FAST_EXP_ERROR = 2.0**-22
"""Relative error of ex2.approx.ftz.f32, 2 units in the last place: CUDA's Programming Guide."""
FAST_TANH_ERROR = 2.0**-11
"""Relative error of tanh.approx.f32: PTX ISA."""
DIRECTION_ELEMENTS = 4096
"""From here on, outputs of ordinary inputs have enough different values for the check to see in
which direction they are rounded."""


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
        return torch.from_numpy(_running_sums(steps.numpy(), axis=0)[-1])
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


def scan_sequential(terms: Tensor) -> Tensor:
    """Inclusive prefix sums with one accumulator."""
    if terms.dtype != torch.float32:
        return terms.cumsum(-1)
    # In fp32 after every term, which PyTorch's own need not be.
    sums = torch.from_numpy(_running_sums(terms.cpu().numpy(), axis=-1))
    return sums.to(terms.device)


def scan_blocked(terms: Tensor, block: int) -> Tensor:
    """Inclusive prefix sums within blocks of `block` terms, and the sums of the blocks before."""
    blocks = _padded(terms, block).unflatten(-1, (-1, block))
    within = scan_sequential(blocks)
    totals = scan_sequential(within[..., -1])
    within[..., 1:, :] += totals[..., :-1, None]
    return within.flatten(-2)[..., : terms.shape[-1]]


def scan_doubling(terms: Tensor) -> Tensor:
    """Inclusive prefix sums in log2(n) steps, each adding what lies twice as far: Hillis and
    Steele."""
    sums, distance = terms.clone(), 1
    while distance < terms.shape[-1]:
        sums[..., distance:] += sums[..., :-distance].clone()
        distance *= 2
    return sums


def matmul_in_steps(a: Tensor, b: Tensor, step: int) -> Tensor:
    """``a @ b`` of [..., m, k] and [..., k, n], with one accumulator for each output and `step`
    terms of k added at a time."""
    total = a.new_zeros(*a.shape[:-1], b.shape[-1])
    for start in range(0, a.shape[-1], step):
        total += a[..., start : start + step] @ b[..., start : start + step, :]
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


def _running_sums(terms: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    """In the dtype of the terms. Infinities of both signs give NaN, without a warning."""
    with np.errstate(invalid="ignore", over="ignore"):
        sums: np.ndarray[Any, Any] = np.add.accumulate(terms, axis=axis)
    return sums


def _padded(terms: Tensor, multiple: int) -> Tensor:
    missing = -terms.shape[-1] % multiple
    return torch.nn.functional.pad(terms, (0, missing)) if missing else terms


# Functions of tensors in another precision


def computed_in(function: Compute, dtype: torch.dtype, out: torch.dtype | None = None) -> Compute:
    """`function` of its tensors converted to `dtype`; the result is rounded once, to `out` or to
    the dtype of the first tensor. In float64, that is a result rounded once from exact."""

    @wraps(function)
    def compute(**inputs: Any) -> Tensor:
        result = function(**_each(inputs, lambda tensor: tensor.to(dtype)))
        return result.to(out or _first(inputs).dtype)

    return compute


def coarsely_in(function: Compute, dtype: torch.dtype, out: torch.dtype | None = None) -> Mutate:
    """`computed_in` of a dtype that is too coarse; None for tensors that are no finer."""
    return _where_finer(computed_in(function, dtype, out), torch.finfo(dtype).eps)


def of_rounded_inputs(function: Compute, name: str) -> Mutate:
    """`function` of its tensors rounded to a format as in `round_to`; None for tensors that are no
    finer."""
    eps = 2.0**-10 if name == "tf32" else torch.finfo(COARSE[name]).eps

    @wraps(function)
    def compute(**inputs: Any) -> Tensor:
        return function(**_each(inputs, lambda tensor: round_to(tensor, name)))

    return _where_finer(compute, eps)


def rounded_toward_zero(function: Compute) -> Mutate:
    """`function` in fp32, its 16-bit result rounded toward zero. None for other results, for few,
    and for bfloat16 on a CPU, where Triton's interpreter does the same and is accepted."""

    @wraps(function)
    def compute(**inputs: Any) -> Tensor | None:
        dtype = _first(inputs).dtype
        if dtype.itemsize > 2 or (dtype == torch.bfloat16 and not _first(inputs).is_cuda):
            return None
        result = function(**_each(inputs, Tensor.float))
        return truncated_to(result, dtype) if result.numel() >= DIRECTION_ELEMENTS else None

    return compute


def fast_exp(values: Tensor) -> Tensor:
    """The exponential as far off as the hardware's may be. What is below the normal numbers becomes
    0."""
    exp = alternately_off(torch.exp2(values * math.log2(math.e)), FAST_EXP_ERROR)
    return torch.where(exp < torch.finfo(exp.dtype).tiny, 0.0, exp)


def fast_tanh(values: Tensor) -> Tensor:
    """The hyperbolic tangent as far off as the hardware's may be: too far for most problems."""
    return alternately_off(torch.tanh(values), FAST_TANH_ERROR).clamp(-1, 1)


def alternately_off(values: Tensor, relative: float) -> Tensor:
    """Values off by a relative error, up in one column and down in the next."""
    sign = 1 - 2 * (torch.arange(values.shape[-1], device=values.device) % 2)
    return values * (1 + sign * relative)


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
    mean: the common part cancels, so no kernel should do it."""
    mean = sum_pairwise(terms) / terms.shape[-1]
    square = sum_pairwise(terms * terms) / terms.shape[-1]
    return mean, (square - mean * mean).clamp(min=0)


ROW_STATISTICS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    **{f"two passes, {name}": partial(two_pass, total=total) for name, total in SUM_ORDERS.items()},
    "Welford, one warp a row": partial(welford, lanes=32),
    "Welford, 256 threads a row": partial(welford, lanes=256),
}
"""Ways in which honest kernels compute mean and variance of a row, by what they are called."""


# Usual mistakes


def without_tail(function: Compute, block: int) -> Mutate:
    """A grid of ``count // block`` blocks: what follows the last whole block of the flat output is
    0. None where nothing follows that is far from 0."""

    @wraps(function)
    def compute(**inputs: Any) -> Tensor | None:
        result = function(**inputs).clone()
        count = result.numel()
        tail = result.view(-1)[count - count % block :]
        if not len(tail) or bool(tail.abs().max() < NEARLY_0 * result.abs().max()):
            return None
        tail.zero_()
        return result

    return compute


def shifted_by_one(function: Compute) -> Compute:
    """Every element has the result of the one before it, and the first one its own."""

    @wraps(function)
    def compute(**inputs: Any) -> Tensor:
        result = function(**inputs)
        flat = result.reshape(-1)
        return torch.cat([flat[:1], flat[:-1]]).view(result.shape)

    return compute


# What most elementwise problems need


def elementwise_honest(function: Compute) -> dict[str, Compute]:
    """Honest implementations of an elementwise problem: in fp32, and rounded once from float64."""
    return {
        "in fp32": computed_in(function, torch.float32),
        "rounded once": computed_in(function, torch.float64),
    }


def elementwise_mutants(function: Compute, block: int = 1024) -> dict[str, Mutate]:
    """Broken implementations of an elementwise problem: too coarse, rounded in one direction, or
    with elements missing or out of place."""
    return {
        "computed in fp16": coarsely_in(function, torch.float16),
        "computed in bf16": coarsely_in(function, torch.bfloat16),
        "inputs in TF32": of_rounded_inputs(function, "tf32"),
        "rounded toward zero": rounded_toward_zero(function),
        "tail left out": without_tail(function, block),
        "shifted by one": shifted_by_one(function),
    }


def _where_finer(function: Compute, eps: float) -> Mutate:
    """`function`; None where the first tensor is no finer than `eps`."""

    @wraps(function)
    def compute(**inputs: Any) -> Tensor | None:
        return function(**inputs) if torch.finfo(_first(inputs).dtype).eps < eps else None

    return compute


def _first(inputs: dict[str, Any]) -> Tensor:
    """The first floating-point tensor."""
    return next(v for v in inputs.values() if torch.is_tensor(v) and v.is_floating_point())


def _each(inputs: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The inputs with every floating-point tensor changed."""
    return {
        name: change(value) if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def sum_in(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """A sum whose terms and accumulators, one for each of 32 lanes, are of a narrow dtype."""
    return sum_strided(terms.to(dtype), 32).to(terms.dtype)


# --- products of matrices


def matmul_backwards(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in steps of 16 terms of k, from the last to the first."""
    return matmul_in_steps(a.flip(1), b.flip(0), 16)


def matmul_split(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """``a @ b`` by split-K: partial sums over ranges of k, added in sequence."""
    return matmul_in_steps(a, b, max(1, -(-a.shape[1] // parts)))


def matmul_strided(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """``a @ b`` by split-K, in which each part has every `parts`-th term; the last part first."""
    total = a.new_zeros(a.shape[0], b.shape[1])
    for part in reversed(range(parts)):
        total += a[:, part::parts] @ b[part::parts]
    return total


MATMUL_ORDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "one thread an output": partial(matmul_in_steps, step=1),
    "k in steps of 16": partial(matmul_in_steps, step=16),
    "k in steps of 64": partial(matmul_in_steps, step=64),
    "k backwards": matmul_backwards,
    "split-K, 8 parts": partial(matmul_split, parts=8),
    "split-K, strided": partial(matmul_strided, parts=8),
}
"""Orders in which honest kernels sum a product's terms, by what they are called."""


def matmul_narrow(a: Tensor, b: Tensor, dtype: torch.dtype, step: int = 16) -> Tensor:
    """``a @ b`` with an accumulator of a narrow dtype, to which `step` terms are added at a time,
    as tensor cores do: their sum alone is exact."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype, device=a.device)
    for start in range(0, a.shape[1], step):
        total = (total.float() + a[:, start : start + step] @ b[start : start + step]).to(dtype)
    return total.to(a.dtype)


# --- int4 codes


def pack_int4(codes: Tensor) -> Tensor:
    """Unsigned codes 0 … 15, uint8 [k, n] → [k, n // 2]: the even column in the low nibble."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack_int4(packed: Tensor) -> Tensor:
    """The unsigned codes, uint8 [k, n], of `pack_int4`."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(start_dim=1)
