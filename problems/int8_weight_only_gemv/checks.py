"""Honest products with int8 weights, which the check must accept, and broken ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import MATMUL_ORDERS, matmul_narrow, round_to

FEW = 64
"""Outputs below which an error of factors looks like rounding."""
STEP = 16

Gemv = Callable[[Tensor, Tensor, Tensor], Tensor]
Mutant = Callable[..., Tensor | None]
Product = Callable[[Tensor, Tensor], Tensor]


def magnitude(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
    """Sum over k of ``|x·w|``, [n]."""
    return (w.to(x.dtype).abs() @ x.abs()) * scales.abs()


def _gemv(product: Product, codes: Callable[[Tensor], Tensor] = Tensor.float) -> Gemv:
    """Codes times vector in fp32, scaled after the sum."""

    def gemv(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
        return (product(codes(w), x.float()[:, None])[:, 0] * scales.float()).half()

    return gemv


def _half_weights(product: Product) -> Gemv:
    """Weights scaled in fp16, then summed in fp32."""

    def gemv(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
        weights = w.half() * scales[:, None]
        return product(weights.float(), x.float()[:, None])[:, 0].half()

    return gemv


def _rounded_once(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
    return ((w.double() @ x.double()) * scales.double()).half()


HONEST: dict[str, Gemv] = {
    **{name: _gemv(product) for name, product in MATMUL_ORDERS.items()},
    "weights in fp16, k in steps of 16": _half_weights(MATMUL_ORDERS["k in steps of 16"]),
    "weights in fp16, split-K": _half_weights(MATMUL_ORDERS["split-K, 8 parts"]),
    "rounded once": _rounded_once,
}


def _if(applies: Callable[..., bool], mutant: Gemv) -> Mutant:
    """The mutant where it is off by more than rounding."""

    def limited(x: Tensor, w: Tensor, scales: Tensor, values: str) -> Tensor | None:
        return mutant(x, w, scales) if applies(w, values) else None

    return limited


def _is_many(w: Tensor, values: str) -> bool:
    return len(w) >= FEW


def _is_sum(w: Tensor, values: str) -> bool:
    return values != "one_hot" and w.shape[1] > STEP and len(w) >= FEW


def _factors_in(name: str) -> Gemv:
    def gemv(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
        weights = round_to(w.float() * scales.float()[:, None], name)
        return (weights @ round_to(x.float(), name)).half()

    return gemv


def _without_last(count: int) -> Mutant:
    return _if(_is_sum, _gemv(lambda w, x: w[:, :-count] @ x[:-count]))


def _sum_in(dtype: torch.dtype) -> Mutant:
    """Of scaled weights."""

    def gemv(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
        weights = w.float() * scales.float()[:, None]
        return matmul_narrow(weights, x.float()[:, None], dtype)[:, 0].half()

    return _if(lambda w, values: values == "cancelling", gemv)


MUTANTS: dict[str, Mutant] = {
    "unsigned codes": _gemv(torch.matmul, lambda w: w.view(torch.uint8).float()),
    "codes less 128": _if(_is_many, _gemv(torch.matmul, lambda w: w.float() - 128)),
    "-128 taken for -127": _if(
        lambda w, values: values == "extreme",
        _gemv(torch.matmul, lambda w: w.float().clamp(min=-127)),
    ),
    "factors in bf16": _if(_is_many, _factors_in("bf16")),
    "factors in fp8": _if(_is_many, _factors_in("fp8")),
    "sum in fp16": _sum_in(torch.float16),
    "sum in bf16": _sum_in(torch.bfloat16),
    "last of k left out": _without_last(1),
    "last 16 of k left out": _without_last(STEP),
    "one scale for all": lambda x, w, scales: _gemv(torch.matmul)(x, w, scales[:1].expand(len(w))),
    "scale of the next row": lambda x, w, scales: _gemv(torch.matmul)(x, w, scales.roll(-1)),
}
