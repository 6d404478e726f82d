"""The sum of each window."""

from torch import Tensor


def reference(x: Tensor, width: int) -> Tensor:
    """Of shape [n - width + 1]."""
    return x.unfold(0, width, 1).sum(-1)
