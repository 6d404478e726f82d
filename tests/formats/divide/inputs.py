"""Integers of either sign, divisors never 0."""

import torch
from torch import Tensor


def generate(generator: torch.Generator, call: int, *, n: int) -> dict[str, Tensor]:
    """`a` and `b` [n], int32."""
    device = generator.device
    a = torch.randint(-10_000, 10_000, (n,), generator=generator, device=device)
    b = torch.randint(1, 100, (n,), generator=generator, device=device)
    sign = 1 - 2 * torch.randint(0, 2, (n,), generator=generator, device=device)
    return {"a": a.int(), "b": (b * sign).int()}
