"""Quotient and remainder as Python has them, and the ratio."""

from torch import Tensor


def reference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All of shape [n]; the ratio in float64."""
    return a // b, a % b, a.double() / b.double()


def eager(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return a // b, a % b, a / b
