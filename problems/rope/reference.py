"""Rotary position embedding from tables, and what a PyTorch user writes for it.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), with the pairs of
GPT-NeoX and Llama: elements i and i + head_dim / 2.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reference(x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Every head of `x` [tokens, heads, head_dim], rotated by the row of the tables
    [max_positions, head_dim / 2] at the token's position [tokens]."""
    cos, sin = cosines[positions][:, None], sines[positions][:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def eager(x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """The yardstick. A 16-bit element times an element of the tables is fp32."""
    return reference(x, positions, cosines, sines).to(x.dtype)
