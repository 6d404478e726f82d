"""Inputs of GELU: one vector, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TINY = {"fp32": 1e-39, "fp16": 1e-6, "bf16": 1e-39}
"""Where a dtype's numbers are denormal."""


def generate(
    generator: torch.Generator, call: int, *, n: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [n] of `dtype`.

    `values` is ``normal``, twice the standard normal; ``wide``, where the tanh is 1 and -1 too;
    ``huge``, where the cube overflows; ``tiny``, two thirds denormal; or ``special``, with infinity
    and NaN. Minus infinity is left out: its formula gives NaN, and its limit 0.
    """
    x = torch.randn(n, generator=generator, device=generator.device) * 2
    if values == "wide":
        x *= 4
    elif values == "huge":
        most = 4.0 if dtype == "fp16" else 37.0
        drawn = torch.rand(n, generator=generator, device=generator.device)
        x = torch.copysign(torch.pow(10.0, drawn * most), x)
    elif values == "tiny":
        x[1::3] *= TINY[dtype]
        x[2::3] *= TINY[dtype] * 10
    elif values == "special":
        x[1::5] = torch.inf
        x[2::5] = torch.nan
        x[3::5] = -0.0
    return {"x": x.to(DTYPES[dtype])}
