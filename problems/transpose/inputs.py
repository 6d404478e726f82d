"""Inputs of the transpose: one matrix, ordinary or with numbers that arithmetic would change."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [rows, cols] of `dtype`; `values` is ``normal``, or ``special``: denormal numbers,
    infinities, NaN and the largest numbers between ordinary ones."""
    x = torch.randn(rows, cols, generator=generator, device=generator.device)
    if values == "special":
        flat = x.view(-1)
        flat[1::7] *= 1e-39
        flat[2::7] = torch.inf
        flat[3::14] = -torch.inf
        flat[4::14] = torch.nan
        flat[5::7] = torch.copysign(torch.full_like(flat[5::7], 3e38), flat[5::7])
    return {"x": x.to(DTYPES[dtype])}
