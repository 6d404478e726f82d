"""Inputs of the rotary position embedding: heads of every token, positions, and two tables."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BASE = 10_000.0
"""The longest wave is 2π times as many positions, nearly."""


def generate(
    generator: torch.Generator,
    call: int,
    *,
    tokens: int,
    heads: int,
    head_dim: int,
    max_positions: int,
    dtype: str,
    order: str,
    values: str,
) -> dict[str, Tensor]:
    """`x` [tokens, heads, head_dim] of `dtype`; `positions` [tokens], int64, in an `order`; and
    `cosines` and `sines` [max_positions, head_dim / 2], fp32, from a random position on."""
    device = generator.device
    start = torch.randint(1 << 16, (1,), generator=generator, device=device)
    steps = (torch.arange(max_positions, device=device) + start).double()
    waves = BASE ** (-torch.arange(head_dim // 2, device=device).double() / (head_dim // 2))
    angles = steps[:, None] * waves
    cosines, sines = angles.cos().float(), angles.sin().float()
    positions = torch.randint(max_positions, (tokens,), generator=generator, device=device)
    if order == "rising":  # a sequence after the other
        positions = torch.arange(tokens, device=device) % max_positions
    elif order == "ends":
        positions = torch.where(positions % 2 == 0, 0, max_positions - 1)
    elif order == "same":
        positions = positions[:1].expand(tokens).clone()
    x = torch.randn(tokens, heads, head_dim, generator=generator, device=device)
    if values == "outliers":
        x[..., :: max(1, head_dim // 3)] *= 300
    elif values == "cancelling":  # the second of each pair becomes small
        half = head_dim // 2
        # At larger tangents so little would be left that rounding of the products would show.
        tangents = (sines / cosines)[positions][:, None].clamp(-2, 2)
        x[..., half:] *= 0.05
        x[..., half:] -= x[..., :half] * tangents
    return {
        "x": x.to(DTYPES[dtype]),
        "positions": positions,
        "cosines": cosines,
        "sines": sines,
    }
