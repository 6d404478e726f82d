"""Ordinary logits."""

import torch
from torch import Tensor


def generate(generator: torch.Generator, call: int, *, rows: int, cols: int) -> dict[str, Tensor]:
    """`x` fp32 [rows, cols], around 5, so that no sum's logarithm is near zero."""
    return {"x": 5 + torch.randn(rows, cols, generator=generator, device=generator.device)}
