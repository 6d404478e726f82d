"""Inputs of the SwiGLU problem: one matrix, whose first half has one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NEVER_ZERO = 0.01
"""The least absolute value of `up` beside an infinite gate: their product would be NaN."""


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [rows, 2·cols] of `dtype`: gates, then up; `values` names the gates' distribution."""
    device = generator.device
    x = torch.randn(rows, 2 * cols, generator=generator, device=device)
    gate, up = x[:, :cols], x[:, cols:]
    if values == "wide":  # the exponential spans many orders of magnitude
        gate *= 8
    elif values == "extreme":  # exp(-gate) overflows for one of three, and vanishes for another
        gate[:, 1::3] = gate[:, 1::3].abs() * 50 + 120
        gate[:, 2::3] = -gate[:, 2::3].abs() * 50 - 120
    elif values == "small":
        gate *= 0.01
    elif values == "zeros":
        gate[:, ::2] = 0
    elif values == "tiny":  # denormal gates
        gate[:, 1::3] *= 1e-40
    elif values == "infinite":
        up[up.abs() < NEVER_ZERO] = NEVER_ZERO
        gate[:, ::7] = torch.inf
    return {"x": x.to(DTYPES[dtype])}
