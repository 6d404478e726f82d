"""Inputs: one vector, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SCALES = {"normal": 1.0, "wide": 8.0, "small": 1e-3}
"""Distribution → standard deviation. Add those at which a careless kernel fails."""


def generate(
    generator: torch.Generator, call: int, *, n: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [n] of `dtype`; `values` names the distribution, one of `SCALES`."""
    x = torch.randn(n, generator=generator, device=generator.device)
    return {"x": (x * SCALES[values]).to(DTYPES[dtype])}
