"""Inputs of the square: one matrix, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
EXPONENTS = {"fp32": (-66.0, 66.0), "bf16": (-66.0, 66.0), "fp16": (-13.0, 9.0)}
"""Powers of two whose squares reach below the smallest number of a dtype and beyond the largest."""


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [rows, cols] of `dtype`; `values` is ``normal``, ``spread`` over all magnitudes whose
    squares a dtype can hold and a little beyond, or ``special``: infinities, NaN and zeros too."""
    x = torch.randn(rows, cols, generator=generator, device=generator.device)
    if values == "spread":
        low, high = EXPONENTS[dtype]
        drawn = torch.rand(rows, cols, generator=generator, device=generator.device)
        x = torch.copysign(torch.exp2(drawn * (high - low) + low), x)
    elif values == "special":
        flat = x.view(-1)
        flat[1::5] = torch.inf
        flat[2::5] = -torch.inf
        flat[3::10] = torch.nan
        flat[8::10] = -0.0
    return {"x": x.to(DTYPES[dtype])}
