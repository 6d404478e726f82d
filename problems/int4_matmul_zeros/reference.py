"""Matmul with packed int4 weights and zero points, and what a PyTorch user writes for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

GROUP = 128
ROWS_AT_ONCE = 16 * GROUP
"""Rows of weights that are dequantised at a time, so that 16384² weights need no 2 GiB."""


def reference(a: Tensor, b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    """``a @ ((code - zero) * scale)`` at the precision of `a` [m, k]; gives [m, n]."""
    total = a.new_zeros(a.shape[0], scales.shape[1])
    for start in range(0, a.shape[1], ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        groups = slice(start // GROUP, (start + ROWS_AT_ONCE) // GROUP)
        scale = scales[groups].to(a.dtype)
        total += a[:, rows] @ dequantise(b_packed[rows], scale, zeros_packed[groups])
    return total


def eager(a: Tensor, b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    """The yardstick: dequantise to fp16, then one matmul."""
    return a @ dequantise(b_packed, scales, zeros_packed)


def unpack(packed: Tensor) -> Tensor:
    """uint8 [rows, n // 2] → codes uint8 [rows, n]: low nibble first."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(start_dim=1)


def dequantise(b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    """Weights [k, n], rounded to the dtype of `scales`."""
    codes = unpack(b_packed).to(scales.dtype).unflatten(0, (-1, GROUP))
    zeros = unpack(zeros_packed).to(scales.dtype)
    return ((codes - zeros[:, None, :]) * scales[:, None, :]).flatten(0, 1)


def fp16_matmul(
    a: Tensor, b_packed: Tensor, scales: Tensor, zeros_packed: Tensor
) -> Callable[[], Tensor]:
    """What int4 is meant to beat: the same product with the weights kept in fp16."""
    weights = dequantise(b_packed, scales, zeros_packed)
    return lambda: a @ weights


PREPARED = {"fp16_matmul": fp16_matmul}
"""Calls that need a form of the inputs of their own, made outside of the time."""
