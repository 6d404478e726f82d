"""The numbers of a vector in ascending order."""

from __future__ import annotations

from torch import Tensor


def reference(x: Tensor) -> Tensor:
    """`x` [n], sorted. What a PyTorch user writes is the same."""
    return x.sort().values
