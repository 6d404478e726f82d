"""Two layers and their settings."""

from typing import Any

import torch


def generate(
    generator: torch.Generator, call: int, *, n: int, d: int, h: int, residual: bool
) -> dict[str, Any]:
    """`x` [n, d], `w1` [d, h], `w2` [h, d], all fp32; `slope` 0.25."""

    def normal(rows: int, cols: int) -> torch.Tensor:
        return torch.randn(rows, cols, generator=generator, device=generator.device)

    weights = {"w1": normal(d, h) / d**0.5, "w2": normal(h, d) / h**0.5}
    return {"x": normal(n, d), **weights, "slope": 0.25, "residual": residual}
