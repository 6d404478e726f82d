"""A product of fp8 matrices with block scales, and what a PyTorch user writes for it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

BLOCK = 128


def reference(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    """``(a * a_scales) @ (b * b_scales).T`` of [m, k] and [n, k]; gives [m, n].

    A scale of `a` has 128 elements of a row, one of `b` a block of 128 x 128.
    """
    return dequantise(a, a_scales) @ dequantise(b, spread(b_scales, len(b))).T


def eager(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    """The yardstick: everything in fp32."""
    return reference(a, a_scales, b, b_scales).bfloat16()


def spread(b_scales: Tensor, n: int) -> Tensor:
    """Scales of blocks → scales of rows, [n, k // 128]."""
    return b_scales.repeat_interleave(BLOCK, dim=0)[:n]


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """Codes [rows, k] times scales [rows, k // 128], in the dtype of the scales."""
    return codes.to(scales.dtype) * scales.repeat_interleave(BLOCK, dim=1)


def bf16_matmul(
    a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor
) -> Callable[[], Tensor] | None:
    """What fp8 is meant to beat, on a GPU: the same product of matrices kept in bf16, which
    round too coarsely for a right answer."""
    if not a.is_cuda:
        return None
    left = dequantise(a, a_scales).bfloat16()
    right = dequantise(b, spread(b_scales, len(b))).bfloat16().T
    return lambda: left @ right


PREPARED = {"bf16_matmul": bf16_matmul}
"""Calls that need a form of the inputs of their own, made outside of the time.
None where they are not timed."""
