"""A matrix in fp32, and one in fp8."""

import torch
from torch import Tensor


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, dtype: str
) -> dict[str, Tensor]:
    """`x` fp32 and `previous` fp8_e5m2, both [rows, cols]."""
    device = generator.device
    x, previous = torch.randn(2, rows, cols, generator=generator, device=device)
    return {"x": x, "previous": previous.to(torch.float8_e5m2)}
