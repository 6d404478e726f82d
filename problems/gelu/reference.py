"""GELU with the tanh approximation, and what a PyTorch user writes for it.

D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units (GELUs)" (2016).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SCALE = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def reference(x: Tensor) -> Tensor:
    """GELU of every element of `x` [n], in the form that does not cancel: ``x·sigmoid(2u)``."""
    return x * torch.sigmoid(2 * SCALE * (x + CUBIC * x**3))


def eager(x: Tensor) -> Tensor:
    """What a PyTorch user writes."""
    return torch.nn.functional.gelu(x, approximate="tanh")
