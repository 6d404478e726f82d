"""The sum of two vectors."""

from __future__ import annotations

from torch import Tensor


def reference(x: Tensor, y: Tensor) -> Tensor:
    """``x + y`` of two vectors [n]. What a PyTorch user writes is the same."""
    return x + y
