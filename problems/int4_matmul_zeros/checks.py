"""Honest int4 matmuls with zero points, which the check must accept, and broken ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grader.numerics import MATMUL_ORDERS, matmul_narrow, round_to, unpack_int4

GROUP = 128

Matmul = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Mutant = Callable[..., Tensor | None]
Product = Callable[[Tensor, Tensor], Tensor]
Weights = Callable[[Tensor, Tensor, Tensor], Tensor]


def magnitude(a: Tensor, b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    """Sum over k of ``|a·code·scale|`` and ``|a·zero·scale|``, [m, n]."""
    codes, zeros = unpack_int4(b_packed).to(a.dtype), _spread(unpack_int4(zeros_packed))
    return a.abs() @ ((codes + zeros.to(a.dtype)) * _spread(scales.abs()))


def _spread(of_groups: Tensor) -> Tensor:
    return of_groups.repeat_interleave(GROUP, dim=0)


def _weights(b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    """Weights [k, n] in the precision of `scales`."""
    codes, zeros = unpack_int4(b_packed).short(), _spread(unpack_int4(zeros_packed)).short()
    return (codes - zeros).to(scales.dtype) * _spread(scales)


def _single(b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    return _weights(b_packed, scales.float(), zeros_packed)


def _half(b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    return _weights(b_packed, scales, zeros_packed).float()


def _matmul(
    product: Product = torch.matmul,
    weights: Weights = _single,
    activations: Callable[[Tensor], Tensor] = Tensor.float,
) -> Matmul:
    def matmul(a: Tensor, b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
        return product(activations(a), weights(b_packed, scales, zeros_packed)).half()

    return matmul


def _scaled_groups(a: Tensor, b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    """Each group's product of codes less its zero points times the sum of its activations, scaled
    once: the zero point never meets a code."""
    codes, zeros = unpack_int4(b_packed).float(), unpack_int4(zeros_packed).float()
    total = torch.zeros(len(a), scales.shape[1], device=a.device)
    for group, scale in enumerate(scales.float()):
        rows = slice(group * GROUP, (group + 1) * GROUP)
        part = a[:, rows].float()
        total += (part @ codes[rows] - part.sum(1, keepdim=True) * zeros[group]) * scale
    return total.half()


def _rounded_once(a: Tensor, b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    return (a.double() @ _weights(b_packed, scales.double(), zeros_packed)).half()


HONEST: dict[str, Matmul] = {
    **{name: _matmul(product) for name, product in MATMUL_ORDERS.items()},
    "weights in fp16, k in steps of 16": _matmul(MATMUL_ORDERS["k in steps of 16"], _half),
    "weights in fp16, split-K": _matmul(MATMUL_ORDERS["split-K, 8 parts"], _half),
    "zero points after the sum": _scaled_groups,
    "rounded once": _rounded_once,
}


def _rounded(name: str) -> Weights:
    return lambda b, s, z: round_to(_single(b, s, z), name)


def _swapped(packed: Tensor) -> Tensor:
    return packed << 4 | packed >> 4


def _zeros_off(by: int) -> Weights:
    def weights(b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
        return _single(b_packed, scales, zeros_packed) - by * _spread(scales.float())

    return weights


def _no_zeros(b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    """Every zero point taken for 8."""
    return (unpack_int4(b_packed).float() - 8) * _spread(scales.float())


def _unsigned(b_packed: Tensor, scales: Tensor, zeros_packed: Tensor) -> Tensor:
    """The difference of two codes kept in 8 bits without a sign."""
    codes, zeros = unpack_int4(b_packed), _spread(unpack_int4(zeros_packed))
    return (codes - zeros).float() * _spread(scales.float())


def _sum_in(dtype: torch.dtype) -> Mutant:
    """Only where terms are much larger than results does this show."""

    def mutant(
        a: Tensor, b_packed: Tensor, scales: Tensor, zeros_packed: Tensor, values: str
    ) -> Tensor | None:
        if values != "cancelling":
            return None
        # An odd step, so that each sum holds one term whose neighbour is still to come.
        product = partial(matmul_narrow, dtype=dtype, step=15)
        return _matmul(product)(a, b_packed, scales, zeros_packed)

    return mutant


MUTANTS: dict[str, Mutant] = {
    "nibbles of weights swapped": _matmul(weights=lambda b, s, z: _single(_swapped(b), s, z)),
    "nibbles of zero points swapped": _matmul(weights=lambda b, s, z: _single(b, s, _swapped(z))),
    "zero point off by one": _matmul(weights=_zeros_off(1)),
    "zero point plus one, as GPTQ stores it": _matmul(weights=_zeros_off(-1)),
    "zero point taken for 8": _matmul(weights=_no_zeros),
    "unsigned difference": _matmul(weights=_unsigned),
    "zero points of the next group": _matmul(weights=lambda b, s, z: _single(b, s, z.roll(-1, 0))),
    "scale of the next group": _matmul(weights=lambda b, s, z: _single(b, s.roll(-1, 0), z)),
    "weights in fp8": _matmul(weights=_rounded("fp8")),
    "weights in bf16": _matmul(weights=_rounded("bf16")),
    "activations in bf16": _matmul(activations=lambda a: round_to(a.float(), "bf16")),
    "sum in fp16": _sum_in(torch.float16),
    "sum in bf16": _sum_in(torch.bfloat16),
    "last 16 of k left out": _matmul(lambda a, b: a[:, :-16] @ b[:-16]),
    "last group left out": _matmul(lambda a, b: a[:, :-GROUP] @ b[:-GROUP]),
}
