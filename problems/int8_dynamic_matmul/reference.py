"""An int8 product scaled by row and by column, and what a PyTorch user writes for it."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    """``(a @ b.T) * a_scales[:, None] * b_scales`` of [m, k] and [n, k]; gives [m, n].

    In float64 the sum of int8 products is exact.
    """
    return (a.double() @ b.double().T) * a_scales[:, None] * b_scales


def eager(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    """The yardstick: PyTorch's int8 product where it takes the shape, then two products by scales.
    Elsewhere float64, in which the sum is exact too."""
    m, k = a.shape
    n = len(b)
    if a.is_cuda and m > 16 and k % 8 == 0 and n % 8 == 0:
        total = torch._int_mm(a, b.T)
    else:
        total = a.double() @ b.double().T
    return (total.float() * a_scales[:, None] * b_scales).half()
