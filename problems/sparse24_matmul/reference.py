"""A product with 2:4 sparse weights, and what a PyTorch user writes for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def reference(x: Tensor, w: Tensor) -> Tensor:
    """``x @ w.T`` of [m, k] and [n, k]; gives [m, n]."""
    return x @ w.T


def eager(x: Tensor, w: Tensor) -> Tensor:
    """The yardstick: a dense product, zeros included."""
    return x @ w.T


def semi_structured(x: Tensor, w: Tensor) -> Callable[[], Tensor] | None:
    """PyTorch's product with compressed weights, on sparse tensor cores: on a GPU, for sizes that
    its tiles divide."""
    (m, k), n = x.shape, len(w)
    if not x.is_cuda or m % 64 or n % 64 or k % 64:
        return None
    compressed = torch.sparse.to_sparse_semi_structured(w)
    return lambda: torch.nn.functional.linear(x, compressed)


PREPARED = {"semi_structured": semi_structured}
"""Library calls that need a form of the inputs of their own, made outside of the time."""
