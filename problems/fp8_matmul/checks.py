"""Honest fp8 matmuls, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grader.numerics import MATMUL_ORDERS, matmul_in_steps, matmul_narrow

BLOCK = 128
FEW = 64
KEPT_BITS = 14
"""Of a sum of fp8 products on Hopper's tensor cores."""

Matmul = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Mutant = Callable[..., Tensor | None]
Product = Callable[[Tensor, Tensor], Tensor]


def magnitude(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    """Sum over k of ``|a·b|`` with their scales, [m, n]."""
    left, right = _dequantised(a.abs(), a_scales.abs(), b.abs(), b_scales.abs())
    return left @ right


def _dequantised(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> tuple[Tensor, Tensor]:
    """The factors [m, k] and [k, n], in the dtype of the scales."""
    by_row = b_scales.repeat_interleave(BLOCK, dim=0)[: len(b)]
    left, right = (
        codes.to(scales.dtype) * scales.repeat_interleave(BLOCK, dim=1)
        for codes, scales in ((a, a_scales), (b, by_row))
    )
    return left, right.T


def _matmul(product: Product) -> Matmul:
    """Scaled factors, multiplied in fp32."""

    def matmul(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
        return product(*_dequantised(a, a_scales, b, b_scales)).bfloat16()

    return matmul


def _blocks(product: Product) -> Matmul:
    """Products of codes by blocks of k, each scaled and added: what tensor cores on fp8 ask for."""

    def matmul(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
        total = torch.zeros(len(a), len(b), device=a.device)
        left, right = a.float(), b.float().T
        for block in range(a_scales.shape[1]):
            ks = slice(block * BLOCK, (block + 1) * BLOCK)
            column_scales = b_scales[:, block].repeat_interleave(BLOCK)[: len(b)]
            total += product(left[:, ks], right[ks]) * a_scales[:, block, None] * column_scales
        return total.bfloat16()

    return matmul


def _tensor_core(a: Tensor, b: Tensor) -> Tensor:
    """A sum that is cut to `KEPT_BITS` after every 32 terms."""
    total = torch.zeros(len(a), b.shape[1], device=a.device)
    for start in range(0, a.shape[1], 32):
        total += a[:, start : start + 32] @ b[start : start + 32]
        mantissa, exponent = torch.frexp(total)
        total = torch.ldexp((mantissa * 2**KEPT_BITS).trunc() / 2**KEPT_BITS, exponent)
    return total


def _rounded_once(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    left, right = _dequantised(a, a_scales.double(), b, b_scales.double())
    return (left @ right).bfloat16()


HONEST: dict[str, Matmul] = {
    **{name: _matmul(product) for name, product in MATMUL_ORDERS.items()},
    "scaled by block": _blocks(torch.matmul),
    "scaled by block, in steps of 32": _blocks(partial(matmul_in_steps, step=32)),
    "scaled by block, 14 bits kept": _blocks(_tensor_core),
    "rounded once": _rounded_once,
}


def _many(mutant: Matmul, *kinds: str) -> Mutant:
    """The mutant where outputs are enough to tell it from rounding; only in distributions, if any
    are named."""

    def limited(
        a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor, values: str
    ) -> Tensor | None:
        if len(a) * len(b) < FEW or (kinds and values not in kinds):
            return None
        return mutant(a, a_scales, b, b_scales)

    return limited


def _with_scales(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Matmul:
    def matmul(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
        row_scales, block_scales = change(a_scales, b_scales)
        return _rounded_once(a, row_scales, b, block_scales)

    return matmul


def _as_e5m2(codes: Tensor) -> Tensor:
    """The same bits in the other format, without its NaNs and infinities."""
    return codes.view(torch.float8_e5m2).float().nan_to_num(0, 0, 0)


def _subnormals_flushed(codes: Tensor) -> Tensor:
    values = codes.float()
    return torch.where(values.abs() < 2.0**-6, 0.0, values)


def _powers_of_two(scales: Tensor) -> Tensor:
    return 2.0 ** scales.clamp(min=1e-30).log2().round() * (scales > 0)


MUTANTS: dict[str, Mutant] = {
    "codes taken for e5m2": _many(lambda a, s, b, t: _rounded_once(_as_e5m2(a), s, b, t)),
    "codes without their sign": _many(
        lambda a, s, b, t: _rounded_once(a.float().abs(), s, b, t), "normal", "extreme", "tiny"
    ),
    "subnormal codes flushed": _many(
        lambda a, s, b, t: _rounded_once(_subnormals_flushed(a), s, b, t), "tiny"
    ),
    "sum of codes in fp16": _many(
        _blocks(partial(matmul_narrow, dtype=torch.float16)), "normal", "extreme", "cancelling"
    ),
    "sum of codes in bf16": _many(
        _blocks(partial(matmul_narrow, dtype=torch.bfloat16)), "cancelling"
    ),
    "sum in bf16": _many(_matmul(partial(matmul_narrow, dtype=torch.bfloat16)), "cancelling"),
    "last block of k left out": _many(
        _matmul(lambda a, b: a[:, :-BLOCK] @ b[:-BLOCK]), "normal", "extreme", "tiny"
    ),
    "last 16 of k left out": _many(
        _matmul(lambda a, b: a[:, :-16] @ b[:-16]), "normal", "extreme", "tiny", "uneven"
    ),
    "a's scale of the next block": _many(_with_scales(lambda s, t: (s.roll(-1, 1), t))),
    "a's scale of the next row": _many(_with_scales(lambda s, t: (s.roll(-1, 0), t))),
    "b's scale of the next block": _many(_with_scales(lambda s, t: (s, t.roll(-1, 1)))),
    "b's scale of the first rows": _many(_with_scales(lambda s, t: (s, t[:1].expand_as(t)))),
    "scales as powers of two": _many(
        _with_scales(lambda s, t: (_powers_of_two(s), _powers_of_two(t)))
    ),
}
