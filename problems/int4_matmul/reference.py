"""Matmul with packed int4 weights, and what a PyTorch user writes for it."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 128
ROWS_AT_ONCE = 16 * GROUP
"""Rows of weights that are dequantised at a time, so that 16384² weights need no 2 GiB."""


def unpack(b_packed: Tensor) -> Tensor:
    """uint8 [k, n // 2] → signed codes int8 [k, n]: low nibble first, less 8."""
    low, high = b_packed & 0xF, b_packed >> 4
    codes = torch.stack((low, high), dim=-1).flatten(start_dim=1)
    return codes.to(torch.int8) - 8


def reference(a: Tensor, b_packed: Tensor, scales: Tensor) -> Tensor:
    """``a @ ((nibble - 8) * scale)`` at the precision of `a` [m, k]; gives [m, n]."""
    total = a.new_zeros(a.shape[0], scales.shape[1])
    for start in range(0, a.shape[1], ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        groups = slice(start // GROUP, (start + ROWS_AT_ONCE) // GROUP)
        codes = unpack(b_packed[rows]).to(a.dtype)
        weights = codes.unflatten(0, (-1, GROUP)) * scales[groups, None, :].to(a.dtype)
        total += a[:, rows] @ weights.flatten(0, 1)
    return total


def eager(a: Tensor, b_packed: Tensor, scales: Tensor) -> Tensor:
    """The yardstick: dequantise to fp16, then one matmul."""
    codes = unpack(b_packed).to(a.dtype)
    weights = codes * scales.repeat_interleave(GROUP, dim=0)
    return a @ weights
