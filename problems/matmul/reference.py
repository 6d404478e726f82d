"""The product of two matrices, and what a PyTorch user writes for it."""

from __future__ import annotations

from torch import Tensor


def reference(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of [m, k] and [k, n]; gives [m, n]."""
    return a @ b


def eager(a: Tensor, b: Tensor) -> Tensor:
    """The yardstick, which calls cuBLAS on a GPU."""
    return a @ b
