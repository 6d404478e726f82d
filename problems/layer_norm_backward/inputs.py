"""Inputs of LayerNorm's backward pass: gradients, the forward pass's input, weight and
statistics."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
HUGE = 1e15
EPS = 1e-5


def generate(
    generator: torch.Generator,
    call: int,
    *,
    rows: int,
    cols: int,
    dtype: str,
    values: str,
    grads: str,
) -> dict[str, Tensor]:
    """`dy` and `x` [rows, cols] and `weight` [cols] of `dtype`; `mean` and `rstd` [rows] of the
    rows of `x`, fp32. `values` and `grads` name the distributions of `x` and `dy`.

    `dy` is as small as one over the root of the rows, so that a weight's gradient is about 1.
    """
    device = generator.device
    x = torch.randn(rows, cols, generator=generator, device=device)
    x += torch.randn(rows, 1, generator=generator, device=device)
    scale = torch.randn(rows, 1, generator=generator, device=device).exp()
    dy = torch.randn(rows, cols, generator=generator, device=device) / rows**0.5
    weight = torch.randn(cols, generator=generator, device=device) / 2 + 1
    if values == "shifted":  # by a thousand deviations, one row up and the next down
        scale = 1 - 2 * (torch.arange(rows, device=device)[:, None] % 2)
        x += 1000
    elif values == "huge":
        scale = scale * HUGE
        dy *= 10
    elif values == "outliers":  # as in the activations of large models
        x[:, :: max(1, cols // 3)] *= 300
    if grads == "positive":  # the sums over rows do not cancel, those within a row do
        dy = dy.abs() + rows**-0.5
    elif grads == "sparse":  # padding has no gradient
        dy[1::3] = 0
    kind = DTYPES[dtype]
    x = (x * scale).to(kind)
    mean = x.double().mean(dim=-1)
    variance = x.double().var(dim=-1, correction=0)
    return {
        "dy": dy.to(kind),
        "x": x,
        "weight": weight.to(kind),
        "mean": mean.float(),
        "rstd": (variance + EPS).rsqrt().float(),
    }
