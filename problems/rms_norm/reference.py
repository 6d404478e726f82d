"""RMSNorm of rows, and what a PyTorch user writes for it.

Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

from __future__ import annotations

import torch
from torch import Tensor


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x²) + eps) * weight`` for each row of `x` [rows, cols]."""
    mean_square = x.square().mean(dim=-1, keepdim=True)
    return x * (mean_square + eps).rsqrt() * weight


def eager(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The yardstick."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
