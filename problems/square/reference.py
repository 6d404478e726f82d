"""The square of every element."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(x: Tensor) -> Tensor:
    """``x * x`` of a matrix [rows, cols]."""
    return x * x


def eager(x: Tensor) -> Tensor:
    """What a PyTorch user writes."""
    return torch.square(x)
