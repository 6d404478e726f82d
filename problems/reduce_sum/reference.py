"""The sum of each row."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(x: Tensor) -> Tensor:
    """The sums [rows] of `x` [rows, cols]."""
    return x.sum(dim=-1)


def eager(x: Tensor) -> Tensor:
    """What a PyTorch user writes: one reduction, in fp32 whatever the dtype of `x` is."""
    return x.sum(dim=-1, dtype=torch.float32)
