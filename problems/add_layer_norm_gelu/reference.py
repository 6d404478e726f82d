"""GELU of the LayerNorm of a sum, and what a PyTorch user writes for it.

Ba, Kiros and Hinton, "Layer Normalization" (2016); Hendrycks and Gimpel, "Gaussian Error Linear
Units" (2016).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm


def reference(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """``gelu((z - mean) / sqrt(variance + eps) * weight + bias)`` with ``z = x + residual``
    [rows, cols], row by row; ``gelu(h) = h / 2 * (1 + erf(h / sqrt(2)))``."""
    total = x + residual
    deviation = total - total.mean(dim=-1, keepdim=True)
    variance = deviation.square().mean(dim=-1, keepdim=True)
    normal = deviation * (variance + eps).rsqrt() * weight + bias
    return normal / 2 * torch.erfc(normal / -(2**0.5))


def eager(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The yardstick: three operators."""
    return gelu(layer_norm(x + residual, weight.shape, weight, bias, eps))
