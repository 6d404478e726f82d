"""Honest int8 matmuls, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import MATMUL_ORDERS, matmul_narrow, round_to

EXACT_TERMS = 1024
"""Products of -128 and -128 that fp32 adds up without an error: their sum is 2**24."""
FEW = 64
"""Outputs below which rounded scales look like a rounded result."""

Matmul = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Mutant = Callable[..., Tensor | None]


def _exact(a: Tensor, b: Tensor) -> Tensor:
    return a.double() @ b.double().T


def _scaled(total: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
    return (total.float() * a_scales[:, None] * b_scales).half()


def _in_fp32(product: Callable[[Tensor, Tensor], Tensor]) -> Mutant:
    """A sum in fp32 of few enough terms to be exact."""

    def matmul(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor | None:
        if a.shape[1] > EXACT_TERMS:
            return None
        return _scaled(product(a.float(), b.float().T), a_scales, b_scales)

    return matmul


def _scales_first(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    return (_exact(a, b).float() * (a_scales[:, None] * b_scales)).half()


def _columns_first(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    return (_exact(a, b).float() * b_scales * a_scales[:, None]).half()


def _rounded_once(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    return (_exact(a, b) * a_scales.double()[:, None] * b_scales.double()).half()


HONEST: dict[str, Mutant] = {
    **{f"in fp32, {name}": _in_fp32(product) for name, product in MATMUL_ORDERS.items()},
    "scales multiplied first": _scales_first,
    "columns scaled first": _columns_first,
    "rounded once": _rounded_once,
}


def _of(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Matmul:
    """The right product of changed codes."""

    def matmul(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
        return _scaled(_exact(*change(a, b)), a_scales, b_scales)

    return matmul


def _with_scales(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Matmul:
    def matmul(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
        return _scaled(_exact(a, b), *change(a_scales, b_scales))

    return matmul


def _where(kinds: set[str], least_k: int, mutant: Matmul) -> Mutant:
    """The mutant where it is off by more than rounding: in distributions, and for sums as long."""

    def limited(
        a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor, values: str
    ) -> Tensor | None:
        if values not in kinds or a.shape[1] < least_k:
            return None
        return mutant(a, a_scales, b, b_scales)

    return limited


def _many(mutant: Matmul) -> Mutant:
    def limited(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor | None:
        return mutant(a, a_scales, b, b_scales) if len(a) * len(b) >= FEW else None

    return limited


def _narrow(dtype: torch.dtype) -> Matmul:
    def matmul(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
        return _scaled(matmul_narrow(a.float(), b.float().T, dtype), a_scales, b_scales)

    return matmul


def _wrapped(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    """An accumulator of 16 bits."""
    return _scaled(_exact(a, b).long().to(torch.int16), a_scales, b_scales)


def _saturated(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    """A sum held within 16 bits."""
    return _scaled(_exact(a, b).clamp(-(2**15), 2**15 - 1), a_scales, b_scales)


ALL_LARGE = {"extreme", "least"}

MUTANTS: dict[str, Mutant] = {
    "a unsigned": _of(lambda a, b: (a.view(torch.uint8), b)),
    "b unsigned": _of(lambda a, b: (a, b.view(torch.uint8))),
    "-128 taken for -127": _where(
        ALL_LARGE, 2, _of(lambda a, b: (a.clamp(min=-127), b.clamp(min=-127)))
    ),
    "int16 accumulator": _where(ALL_LARGE, 64, _wrapped),
    "sum saturated to int16": _where(ALL_LARGE, 64, _saturated),
    "sum in fp16": _where({"least", "cancelling"}, 64, _narrow(torch.float16)),
    "sum in bf16": _where({"cancelling"}, 64, _narrow(torch.bfloat16)),
    "sum in fp32": _where({"cancelling"}, 2500, _narrow(torch.float32)),
    "last of k left out": _where(
        {"normal", "extreme", "least"}, 2, _of(lambda a, b: (a[:, :-1], b[:, :-1]))
    ),
    "last 16 of k left out": _where(
        {"normal", "extreme", "least"}, 17, _of(lambda a, b: (a[:, :-16], b[:, :-16]))
    ),
    "row scales only": _with_scales(lambda a, b: (a, torch.ones_like(b))),
    "scale of the next row": _with_scales(lambda a, b: (a.roll(-1), b)),
    "scale of the next column": _with_scales(lambda a, b: (a, b.roll(-1))),
    "scales in bf16": _many(_with_scales(lambda a, b: (round_to(a, "bf16"), round_to(b, "bf16")))),
    "scales in fp16": _where(
        {"uneven"}, 1, _with_scales(lambda a, b: (round_to(a, "fp16"), round_to(b, "fp16")))
    ),
}
