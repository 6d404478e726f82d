"""Honest int4 matmuls, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import matmul_in_steps, round_to

GROUP = 128

Matmul = Callable[[Tensor, Tensor, Tensor], Tensor]
Product = Callable[[Tensor, Tensor], Tensor]


def magnitude(a: Tensor, b_packed: Tensor, scales: Tensor) -> Tensor:
    """Sum over k of ``|a·w|``, [m, n]."""
    return a.abs() @ _weights(b_packed, scales).abs()


def _codes(b_packed: Tensor) -> Tensor:
    """uint8 [k, n // 2] → codes from -8 to 7, int16 [k, n]."""
    pairs = torch.stack((b_packed & 0xF, b_packed >> 4), dim=-1)
    return pairs.flatten(start_dim=1).short() - 8


def _weights(b_packed: Tensor, scales: Tensor) -> Tensor:
    """Weights [k, n] in the precision of `scales`: exact in fp32 and wider."""
    return _codes(b_packed).to(scales.dtype) * scales.repeat_interleave(GROUP, dim=0)


def _matmul(
    product: Product,
    weights: Callable[[Tensor, Tensor], Tensor] = lambda b, s: _weights(b, s.float()),
    activations: Callable[[Tensor], Tensor] = Tensor.float,
) -> Matmul:
    """A matmul with its own order of sums, weights or activations."""

    def matmul(a: Tensor, b_packed: Tensor, scales: Tensor) -> Tensor:
        return product(activations(a), weights(b_packed, scales)).half()

    return matmul


def _steps(step: int) -> Product:
    return lambda a, b: matmul_in_steps(a, b, step)


def _split(parts: int) -> Product:
    """Split-K: partial sums over ranges of k, added in sequence."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        size = -(-a.shape[1] // parts)
        total = a.new_zeros(a.shape[0], b.shape[1])
        for start in range(0, a.shape[1], size):
            total += a[:, start : start + size] @ b[start : start + size]
        return total

    return product


def _strided(a: Tensor, b: Tensor) -> Tensor:
    """Split-K with 4 accumulators, each over every fourth row of weights."""
    parts = [a[:, lane::4] @ b[lane::4] for lane in range(4)]
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


def _reversed(a: Tensor, b: Tensor) -> Tensor:
    return matmul_in_steps(a.flip(1), b.flip(0), 16)


def _half_weights(b_packed: Tensor, scales: Tensor) -> Tensor:
    """Dequantised to fp16, as tensor cores take them."""
    return _weights(b_packed, scales).float()


def _scaled_groups(a: Tensor, b_packed: Tensor, scales: Tensor) -> Tensor:
    """The sum of each group over plain codes, scaled once and added in sequence."""
    codes = _codes(b_packed).float()
    total = torch.zeros(a.shape[0], scales.shape[1], device=a.device)
    for group, scale in enumerate(scales.float()):
        rows = slice(group * GROUP, (group + 1) * GROUP)
        total += (a[:, rows].float() @ codes[rows]) * scale
    return total.half()


HONEST: dict[str, Matmul] = {
    "one thread an output": _matmul(_steps(1)),
    "k in steps of 16": _matmul(_steps(16)),
    "k in steps of 64": _matmul(_steps(64)),
    "k backwards": _matmul(_reversed),
    "split-K, 8 parts": _matmul(_split(8)),
    "split-K, strided": _matmul(_strided),
    "weights in fp16, k in steps of 16": _matmul(_steps(16), _half_weights),
    "weights in fp16, split-K": _matmul(_split(8), _half_weights),
    "groups scaled after their sum": _scaled_groups,
    "rounded once": _matmul(torch.matmul, lambda b, s: _weights(b, s.double()), Tensor.double),
}


def _sum_in_half(dtype: torch.dtype) -> Product:
    """Partial sums of 16 terms, added in 16 bits."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype, device=a.device)
        for start in range(0, a.shape[1], 16):
            total += (a[:, start : start + 16] @ b[start : start + 16]).to(dtype)
        return total

    return product


def _without_last(count: int) -> Product:
    return lambda a, b: a[:, :-count] @ b[:-count]


def _weights_in(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda b, s: round_to(_weights(b, s.float()), name)


def _activations_in(name: str) -> Callable[[Tensor], Tensor]:
    return lambda a: round_to(a.float(), name)


def _next_scale(b_packed: Tensor, scales: Tensor) -> Tensor:
    """Each group with the scale of the next one."""
    return _weights(b_packed, scales.float().roll(-1, 0))


MUTANTS: dict[str, Matmul] = {
    "weights in fp8": _matmul(torch.matmul, _weights_in("fp8")),
    "weights in bf16": _matmul(torch.matmul, _weights_in("bf16")),
    "activations in fp8": _matmul(torch.matmul, activations=_activations_in("fp8")),
    "activations in bf16": _matmul(torch.matmul, activations=_activations_in("bf16")),
    "sum in fp16": _matmul(_sum_in_half(torch.float16)),
    "sum in bf16": _matmul(_sum_in_half(torch.bfloat16)),
    "last row of weights left out": _matmul(_without_last(1)),
    "last 16 rows of weights left out": _matmul(_without_last(16)),
    "last of 8 slices left out": _matmul(lambda a, b: _without_last(a.shape[1] // 8)(a, b)),
    "scale of the next group": _matmul(torch.matmul, _next_scale),
}

ADMITTED = {
    # Up to 40 partial sums of 16 terms: as good as weights rounded to fp16.
    "sum in fp16": [
        "gemv",
        "two_columns",
        "odd_pairs",
        "prime_rows",
        "extreme_codes",
        "cancelling",
        "zero_groups",
        "practice_gemv",
    ],
    # Two outputs say little.
    "activations in fp8": ["smallest"],
    "weights in bf16": ["smallest"],
}
