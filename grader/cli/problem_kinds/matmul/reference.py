"""{{title}}: the float64 reference, and what a PyTorch user writes for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def product(a: Tensor, b: Tensor, matmul: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The result [m, n] for `a` [m, k] and `b` [k, n], in their dtype.

    `matmul` multiplies two matrices. Use it for the product, such as ``matmul(a, b)``: the check
    computes with sums over k in other orders and precisions.
    """
    raise NotImplementedError("fill in product() in reference.py")


def reference(a: Tensor, b: Tensor) -> Tensor:
    """Gets float64, and must stay with it."""
    return product(a, b, torch.matmul)


def eager(a: Tensor, b: Tensor) -> Tensor:
    """The baseline: PyTorch's product in 16 bits, which sums in fp32."""
    return product(a, b, torch.matmul)
