"""Inputs of the RMSNorm problem: a matrix in one of several distributions, and a weight."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HUGE = {"fp32": 1e15, "bf16": 1e15, "fp16": 3e3}
"""As large as values may be: in fp32 and bf16, so that no sum of squares overflows fp32."""


def generate(
    generator: torch.Generator,
    call: int,
    *,
    rows: int,
    cols: int,
    dtype: str,
    values: str,
    eps: float = 1e-6,
) -> dict[str, Tensor | float]:
    """`x` [rows, cols] and `weight` [cols] of `dtype`; `values` names the distribution of `x`.

    Every row has a scale of its own, so that the statistics of another row are wrong.
    """
    device = generator.device
    x = torch.randn(rows, cols, generator=generator, device=device)
    x *= torch.randn(rows, 1, generator=generator, device=device).exp()
    weight = torch.randn(cols, generator=generator, device=device) / 2 + 1
    if values == "offset":
        x += 10
    elif values == "huge":
        x *= HUGE[dtype]
    elif values == "near_eps":
        x *= eps**0.5
    elif values == "vanishing":  # the squares vanish in fp32
        x *= 1e-25
    elif values == "zero_rows":
        x[1::2] = 0
    elif values == "equal":
        x[1::2] = x[1::2, :1]
    elif values == "outliers":  # as in the activations of large models
        x[:, :: max(1, cols // 3)] *= 300
    elif values == "tiny":  # a third is denormal
        x[:, 1::3] *= 1e-40
    if dtype == "fp16":
        x.clamp_(-6e4, 6e4)
    return {"x": x.to(DTYPES[dtype]), "weight": weight.to(DTYPES[dtype]), "eps": eps}
