"""Honest matmuls, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import matmul_in_steps, round_to, truncated_to

from .reference import product

Matmul = Callable[[Tensor, Tensor], Tensor]
Implementation = Callable[[Tensor, Tensor], Tensor]
Mutant = Callable[[Tensor, Tensor], Tensor | None]


def magnitude(a: Tensor, b: Tensor) -> Tensor:
    """The sum over k of the terms' absolute values, to which rounding errors are relative."""
    return a.abs() @ b.abs()


def _with(matmul: Matmul) -> Implementation:
    """Products and sums in fp32, by another matmul."""
    return lambda a, b: product(a.float(), b.float(), matmul).to(a.dtype)


def _steps(step: int) -> Matmul:
    return lambda a, b: matmul_in_steps(a, b, step)


def _split(a: Tensor, b: Tensor) -> Tensor:
    """Split-K: the sums over four parts of k, added up."""
    size = -(-a.shape[1] // 4)
    parts = zip(a.split(size, dim=1), b.split(size, dim=0), strict=True)
    return torch.stack([one @ other for one, other in parts]).sum(dim=0)


def _in_fp64(a: Tensor, b: Tensor) -> Tensor:
    return product(a.double(), b.double(), torch.matmul).to(a.dtype)


HONEST: dict[str, Implementation] = {
    "tensor cores, 16 terms at a time": _with(_steps(16)),
    "tiles of 64": _with(_steps(64)),
    "split-K": _with(_split),
    "in fp64, rounded once": _in_fp64,
}


def _operands_in_fp8(a: Tensor, b: Tensor) -> Tensor:
    return _with(torch.matmul)(round_to(a, "fp8"), round_to(b, "fp8"))


def _accumulated_in_16_bits(a: Tensor, b: Tensor) -> Tensor | None:
    """The accumulator is rounded after every 16 terms."""
    if a.shape[1] < 256:
        return None

    def matmul(left: Tensor, right: Tensor) -> Tensor:
        total = left.new_zeros(left.shape[0], right.shape[1])
        for start in range(0, left.shape[1], 16):
            part = left[:, start : start + 16] @ right[start : start + 16]
            total = round_to(total + part, "bf16" if a.dtype == torch.bfloat16 else "fp16")
        return total

    return _with(matmul)(a, b)


def _without_last(a: Tensor, b: Tensor) -> Tensor:
    """The last eighth of k is not summed."""
    kept = a.shape[1] - a.shape[1] // 8
    return _with(lambda left, right: left[:, :kept] @ right[:kept])(a, b)


def _toward_zero(a: Tensor, b: Tensor) -> Tensor | None:
    """Results cut off instead of rounded. On a CPU, Triton's interpreter does so with bfloat16, and
    is accepted."""
    if a.dtype == torch.bfloat16 and not a.is_cuda:
        return None
    return truncated_to(product(a.float(), b.float(), torch.matmul), a.dtype)


MUTANTS: dict[str, Mutant] = {
    "operands in fp8": _operands_in_fp8,
    "accumulated in 16 bits": _accumulated_in_16_bits,
    "without the last eighth of k": _without_last,
    "rounded toward zero": _toward_zero,
}
