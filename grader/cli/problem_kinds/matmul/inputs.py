"""Inputs: two matrices, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def generate(
    generator: torch.Generator, call: int, *, m: int, n: int, k: int, dtype: str, values: str
) -> dict[str, Tensor]:
    """`a` [m, k] and `b` [k, n] of `dtype`; `values` names one of `DISTRIBUTIONS`."""
    a = torch.randn(m, k, generator=generator, device=generator.device)
    b = torch.randn(k, n, generator=generator, device=generator.device)
    given = DISTRIBUTIONS[values](a, b, generator)
    return {name: given[name].to(DTYPES[dtype]) for name in ("a", "b")}


def _normal(a: Tensor, b: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    return {"a": a, "b": b}


def _scaled(a: Tensor, b: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Rows of `a` and columns of `b` of different scales, so that no tile is like another."""
    rows = torch.rand(len(a), 1, generator=generator, device=a.device)
    columns = torch.rand(b.shape[1], generator=generator, device=b.device)
    return {"a": a * (0.25 + rows), "b": b * (0.25 + columns)}


DISTRIBUTIONS = {"normal": _normal, "scaled": _scaled}
"""Add those at which a careless kernel fails."""
