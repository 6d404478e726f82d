"""Honest implementations, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import round_to, truncated_to

from .reference import compute

TILE = 1024
"""Elements of a tile of the kernel that forgets its tail."""
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}


def _in_fp32(x: Tensor) -> Tensor:
    return compute(x.float()).to(x.dtype)


HONEST: dict[str, Callable[[Tensor], Tensor]] = {
    "in fp32": _in_fp32,
    "in fp64, rounded once": lambda x: compute(x.double()).to(x.dtype),
    "one element a thread": lambda x: torch.cat([_in_fp32(part) for part in x.split(TILE)]),
}


def _rounded(name: str) -> Callable[[Tensor], Tensor | None]:
    """Computed in fp32 of inputs that are rounded to a narrower format, as the result is."""

    def broken(x: Tensor) -> Tensor | None:
        if ROUNDING[name] <= torch.finfo(x.dtype).eps / 2:
            return None
        return round_to(compute(round_to(x.float(), name)), name).to(x.dtype)

    return broken


def _without_tail(x: Tensor) -> Tensor | None:
    """Whole tiles only: the rest is left at zero."""
    whole = len(x) - len(x) % TILE
    return torch.cat([_in_fp32(x[:whole]), torch.zeros_like(x[whole:])]) if whole else None


def _toward_zero(x: Tensor) -> Tensor | None:
    """16-bit results, cut off instead of rounded. On a CPU, Triton's interpreter does so with
    bfloat16, and is accepted."""
    if x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and not x.is_cuda):
        return None
    return truncated_to(compute(x.float()), x.dtype)


def _where_it_matters(
    broken: Callable[[Tensor], Tensor | None],
) -> Callable[[Tensor], Tensor | None]:
    """None where a broken implementation changes nothing: a maximum is never rounded."""

    def mutant(x: Tensor) -> Tensor | None:
        result = broken(x)
        return None if result is None or torch.equal(result, _in_fp32(x)) else result

    return mutant


MUTANTS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "computed in fp16": _where_it_matters(_rounded("fp16")),
    "computed in bf16": _where_it_matters(_rounded("bf16")),
    "without the tail": _where_it_matters(_without_tail),
    "rounded toward zero": _where_it_matters(_toward_zero),
}
