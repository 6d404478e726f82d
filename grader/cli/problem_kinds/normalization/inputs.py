"""Inputs: a matrix in one of several distributions, and a weight for each column."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def generate(
    generator: torch.Generator, call: int, *, rows: int, cols: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`x` [rows, cols] and `weight` [cols] of `dtype`; `values` names one of `DISTRIBUTIONS`."""
    device = generator.device
    x = torch.randn(rows, cols, generator=generator, device=device)
    weight = torch.randn(cols, generator=generator, device=device)
    given = {"x": DISTRIBUTIONS[values](x, generator), "weight": weight}
    return {name: tensor.to(DTYPES[dtype]) for name, tensor in given.items()}


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return x


def _wide(x: Tensor, generator: torch.Generator) -> Tensor:
    return x.mul_(8)


def _outlier(x: Tensor, generator: torch.Generator) -> Tensor:
    """In each row, one element that is larger than all others together."""
    peak = torch.randint(x.shape[1], (len(x), 1), generator=generator, device=x.device)
    return x.scatter_(1, peak, 100.0)


def _scaled_rows(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every row has a scale of its own, so that another row's statistics are wrong."""
    scale = torch.rand(len(x), 1, generator=generator, device=x.device)
    return x.mul_(2 ** (8 * scale - 4))


DISTRIBUTIONS = {
    "normal": _normal,
    "wide": _wide,
    "outlier": _outlier,
    "scaled_rows": _scaled_rows,
}
"""Add those at which a careless kernel fails."""
