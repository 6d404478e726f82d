"""{{title}}: the float64 reference, and what a PyTorch user writes for it."""

from __future__ import annotations

from torch import Tensor


def compute(x: Tensor) -> Tensor:
    """The result for each element of `x` [n], in the dtype of `x`, which is any of float's.

    The check computes with it, too: in float32, and in the narrower types that must fail.
    """
    raise NotImplementedError("fill in compute() in reference.py")


def reference(x: Tensor) -> Tensor:
    """Gets float64, and must stay with it."""
    return compute(x)


def eager(x: Tensor) -> Tensor:
    """The baseline. Replace it by PyTorch's own function, if there is one."""
    return compute(x.float()).to(x.dtype)
