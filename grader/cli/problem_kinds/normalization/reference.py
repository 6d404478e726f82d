"""{{title}}: the float64 reference, and what a PyTorch user writes for it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def normalize(x: Tensor, weight: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    """The rows of `x` [rows, cols], normalized and multiplied by `weight` [cols], in their dtype.

    `total` gives the sum of each row, [rows, 1]. Use it for every statistic, such as
    ``total(x * x) / x.shape[-1]``: the check computes with sums in other orders and precisions.
    """
    raise NotImplementedError("fill in normalize() in reference.py")


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """Gets float64, and must stay with it."""
    return normalize(x, weight, _total)


def eager(x: Tensor, weight: Tensor) -> Tensor:
    """The baseline. Replace it by PyTorch's own function, if there is one."""
    return normalize(x.float(), weight.float(), _total).to(x.dtype)


def _total(terms: Tensor) -> Tensor:
    return terms.sum(dim=-1, keepdim=True)
