"""Inputs: one matrix, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [rows, cols] of `dtype`; `values` names the distribution, one of `DISTRIBUTIONS`."""
    x = torch.randn(rows, cols, generator=generator, device=generator.device)
    return {"x": DISTRIBUTIONS[values](x, generator).to(DTYPES[dtype])}


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return x


def _wide(x: Tensor, generator: torch.Generator) -> Tensor:
    return x.mul_(8)


def _spike(x: Tensor, generator: torch.Generator) -> Tensor:
    """Small numbers and, in each row, one that is a hundred times as large."""
    peak = torch.randint(x.shape[1], (len(x), 1), generator=generator, device=x.device)
    height = torch.rand(len(x), 1, generator=generator, device=x.device)
    return x.mul_(0.1).scatter_(1, peak, 10 + height)


DISTRIBUTIONS = {"normal": _normal, "wide": _wide, "spike": _spike}
"""Add those at which a careless kernel fails."""
