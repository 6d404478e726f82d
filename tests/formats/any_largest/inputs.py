"""Matrices whose rows have their largest element several times."""

import torch
from torch import Tensor


def generate(generator: torch.Generator, call: int, *, rows: int, cols: int) -> dict[str, Tensor]:
    """`x` fp32 [rows, cols] with whole numbers and a little more, so that many are equal."""
    x = torch.randn(rows, cols, generator=generator, device=generator.device)
    return {"x": x.mul_(4).floor_().add_(2**-10)}
