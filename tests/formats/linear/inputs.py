"""A linear layer and its input."""

import torch
from torch import Tensor


def generate(generator: torch.Generator, call: int, *, n: int, k: int, m: int) -> dict[str, Tensor]:
    """`x` [n, k], `w` [m, k], `bias` [m], all fp32."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=generator.device)

    return {"x": normal(n, k), "w": normal(m, k) / k**0.5, "bias": normal(m)}
