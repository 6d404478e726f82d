"""Inputs of bias and GELU: a matrix and a bias for each column, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LARGE = 100.0


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [rows, cols] and `bias` [cols] of `dtype`.

    `values` is ``normal``; ``cancelling``, a large bias that most of `x` takes back;
    ``large_bias``, beside which `x` is small; or ``special``, with infinity, NaN and zeros. Minus
    infinity is left out: the formula of GELU gives NaN for it, and its limit is 0.
    """
    device = generator.device
    x = torch.randn(rows, cols, generator=generator, device=device)
    bias = torch.randn(cols, generator=generator, device=device)
    if values == "cancelling":
        # Rounded first, so that what is left of the sum is the same in every dtype.
        bias = (bias * LARGE).to(DTYPES[dtype]).float()
        x = x - bias
    elif values == "large_bias":
        bias *= 10
        bias[0].abs_()  # of an output that is nearly 0 throughout, no relative error could be told
        x *= 0.01
    elif values == "special":
        flat = x.view(-1)
        flat[1::6] = torch.inf
        flat[2::6] = torch.nan
        flat[3::6] = -0.0
        bias[4::5] = torch.inf
        bias[1::5] = 0.0
    return {"x": x.to(DTYPES[dtype]), "bias": bias.to(DTYPES[dtype])}
