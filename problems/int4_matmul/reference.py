"""Matmul with packed int4 weights, and what a PyTorch user writes for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

GROUP = 128
ROWS_AT_ONCE = 16 * GROUP
"""Rows of weights that are dequantised at a time, so that 16384² weights need no 2 GiB."""
INNER_K_TILES = 8
"""Of PyTorch's packed order: how many tiles of 16 rows lie together. It divides a group."""


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
    return a @ dequantise(b_packed, scales)


def dequantise(b_packed: Tensor, scales: Tensor) -> Tensor:
    """Weights [k, n], rounded to the dtype of `scales`."""
    return unpack(b_packed).to(scales.dtype) * scales.repeat_interleave(GROUP, dim=0)


def fp16_matmul(a: Tensor, b_packed: Tensor, scales: Tensor) -> Callable[[], Tensor]:
    """What int4 is meant to beat: the same product with the weights kept in fp16."""
    weights = dequantise(b_packed, scales)
    return lambda: a @ weights


def int4pack_mm(a: Tensor, b_packed: Tensor, scales: Tensor) -> Callable[[], Tensor] | None:
    """PyTorch's own int4 product, on bf16 activations and on weights in its own order.

    Groups run along k as ours do, and its zero point is the code 8. On a GPU of compute capability
    8.0 or more, and for a number of columns that its tiles divide.
    """
    columns = scales.shape[1]
    if not a.is_cuda or torch.cuda.get_device_capability(a.device) < (8, 0) or columns % 8:
        return None
    codes = (unpack(b_packed) + 8).to(torch.uint8).t()  # [n, k]
    pairs = (codes[:, 0::2] << 4 | codes[:, 1::2]).contiguous()
    weights = torch.ops.aten._convert_weight_to_int4pack(pairs, INNER_K_TILES)
    zeros = torch.zeros_like(scales)
    scales_and_zeros = torch.stack((scales, zeros), dim=-1).bfloat16().contiguous()
    activations = a.bfloat16()
    return lambda: torch.ops.aten._weight_int4pack_mm(activations, weights, GROUP, scales_and_zeros)


PREPARED = {"fp16_matmul": fp16_matmul, "int4pack_mm": int4pack_mm}
"""Library calls that need a form of the inputs of their own: name → function of the inputs that
makes it, outside the time, and gives the call to time. None where the library has no such call."""
