"""SwiGLU of the two halves of each row, and what a PyTorch user writes for it.

Shazeer, "GLU Variants Improve Transformer" (2020).
"""

from __future__ import annotations

import torch
from torch import Tensor


def reference(x: Tensor) -> Tensor:
    """``silu(gate) * up`` [rows, cols], where the row's first half in `x` [rows, 2·cols] is the
    gate and its second half is up; ``silu(g) = g / (1 + exp(-g))``."""
    gate, up = x.chunk(2, dim=-1)
    return gate / (1 + (-gate).exp()) * up


def eager(x: Tensor) -> Tensor:
    """The yardstick."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
