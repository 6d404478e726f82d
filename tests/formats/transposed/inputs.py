"""A matrix."""

import torch
from torch import Tensor


def generate(generator: torch.Generator, call: int, *, rows: int, cols: int) -> dict[str, Tensor]:
    """`x` fp32 [rows, cols], contiguous."""
    return {"x": torch.randn(rows, cols, generator=generator, device=generator.device)}
