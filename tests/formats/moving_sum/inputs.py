"""A vector of positive numbers, so that no sum cancels."""

import torch
from torch import Tensor


def generate(generator: torch.Generator, call: int, *, n: int, width: int) -> dict[str, Tensor]:
    """`x` fp32 [n]."""
    return {"x": 0.5 + torch.rand(n, generator=generator, device=generator.device)}
