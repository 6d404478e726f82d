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


# --- products of matrices


def matmul_backwards(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in steps of 16 terms of k, from the last to the first."""
    return matmul_in_steps(a.flip(1), b.flip(0), 16)


def matmul_split(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """``a @ b`` by split-K: partial sums over ranges of k, added in sequence."""
    return matmul_in_steps(a, b, max(1, -(-a.shape[1] // parts)))


def matmul_strided(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """``a @ b`` by split-K, in which a part has every so many-th term; the last part first."""
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
