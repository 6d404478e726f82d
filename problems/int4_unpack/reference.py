"""The signed codes of packed bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(packed: Tensor) -> Tensor:
    """uint8 [rows, cols // 2] → signed codes int8 [rows, cols]: low nibble first, less 8."""
    low, high = packed % 16, packed // 16
    return torch.stack((low, high), dim=-1).flatten(start_dim=1).to(torch.int8) - 8


def eager(packed: Tensor) -> Tensor:
    """The yardstick."""
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(start_dim=1)
    return codes.to(torch.int8) - 8
