"""{{title}}: the float64 reference, and what a PyTorch user writes for it."""

from __future__ import annotations

from torch import Tensor


def terms(x: Tensor) -> Tensor:
    """What is summed over each row: a term for each element of `x` [rows, cols], in its dtype.

    The check adds up the same terms in other orders and precisions.
    """
    raise NotImplementedError("fill in terms() in reference.py")


def reference(x: Tensor) -> Tensor:
    """Gets float64, and must stay with it."""
    return terms(x).sum(dim=-1)


def eager(x: Tensor) -> Tensor:
    """The baseline. Replace it by PyTorch's own function, if there is one."""
    return terms(x.float()).sum(dim=-1).to(x.dtype)
