"""Inputs of the chain: two matrices, whose sum has one of several distributions; weight and
bias."""

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
    eps: float = 1e-5,
) -> dict[str, Tensor | float]:
    """`x` and `residual` [rows, cols], `weight` and `bias` [cols] of `dtype`; `values` names the
    distribution of the sum.

    Every row has a mean and a scale of its own, so that the statistics of another row are wrong.
    The mean is smaller than the deviation: a sum that is rounded to 16 bits stays good enough.
    """
    device = generator.device
    both = torch.randn(2, rows, cols, generator=generator, device=device)
    both += torch.randn(2, rows, 1, generator=generator, device=device) / 2
    scale = torch.randn(rows, 1, generator=generator, device=device).exp()
    weight = torch.randn(cols, generator=generator, device=device) / 2 + 1
    bias = torch.randn(cols, generator=generator, device=device)
    x, residual = both
    if values == "shifted":  # by a thousand deviations, one row up and the next down
        scale = 1 - 2 * (torch.arange(rows, device=device)[:, None] % 2)
        x += 1000
    elif values == "cancelling":  # most of x and residual
        x += 10
        residual -= 10
    elif values == "huge":
        scale = scale * HUGE[dtype]
    elif values == "near_eps":
        scale = scale * eps**0.5
    elif values == "equal":
        scale = 0.1
        both[:, ::2] = both[:, ::2, :1]
    elif values == "outliers":  # as in the activations of large models
        x[:, :: max(1, cols // 3)] *= 300
    both *= scale
    if dtype == "fp16":
        # Not cut off: two elements at the limit would be a row without any variance.
        both *= (3e4 / both.abs().amax((0, 2), keepdim=True)).clamp(max=1)
    kind = DTYPES[dtype]
    return {
        "x": x.to(kind),
        "residual": residual.to(kind),
        "weight": weight.to(kind),
        "bias": bias.to(kind),
        "eps": eps,
    }
