"""A linear layer and its input."""

import torch
from torch import Tensor


def generate(generator: torch.Generator, call: int, *, n: int, k: int, m: int) -> dict[str, Tensor]:
    """`x` [n, k], `w` [m, k], `bias` [m], all fp32. None is negative: a sum that cancels by chance
    is far off relative to itself, and one test has a single sum."""

    def positive(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=generator.device).abs_()

    return {"x": positive(n, k), "w": positive(m, k) / k**0.5, "bias": positive(m)}
