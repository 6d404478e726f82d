"""Honest gradients of LayerNorm, which the check must accept, and broken ones, which it must
reject."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grader.numerics import SUM_ORDERS, round_to, sum_blocked, sum_in, sum_pairwise, sum_strided

Sum = Callable[[Tensor], Tensor]
"""A sum along the last axis."""
Gradients = tuple[Tensor, Tensor, Tensor]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Gradients]
Mutant = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Gradients | None]

SHIFTED = 100
"""Deviations by which a row's mean is off 0, from where on its rounding counts."""


def magnitude(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    """Sums of absolute values. A normalized element is a difference, off by roundings of both of
    its terms."""
    normal = (x.abs() + mean[:, None].abs()) * rstd[:, None]
    exact = ((x - mean[:, None]) * rstd[:, None]).abs()
    inner = (dy * weight).abs()
    along = (inner * normal).mean(-1, keepdim=True)
    dx = inner + inner.mean(-1, keepdim=True) + exact * along + normal * along
    return dx * rstd[:, None], (dy.abs() * normal).sum(0), dy.abs().sum(0)


def _backward(
    row_sum: Sum = sum_pairwise,
    column_sum: Sum = sum_pairwise,
    normalized: Callable[[Tensor], Tensor] = lambda normal: normal,
) -> Backward:
    """The gradients in fp32 with other sums within rows and over rows, or another precision of the
    normalized elements."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
        cols, grads = x.shape[1], dy.float()
        normal = normalized((x.float() - mean[:, None]) * rstd[:, None])
        inner = grads * weight.float()
        across = row_sum(inner)[:, None] / cols
        along = row_sum(inner * normal)[:, None] / cols
        dx = (inner - across - normal * along) * rstd[:, None]
        dweight = column_sum((grads * normal).T.contiguous())
        dbias = column_sum(grads.T.contiguous())
        return dx.to(x.dtype), dweight.to(x.dtype), dbias.to(x.dtype)

    return backward


# --- honest


def _factored(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    """``dx = a·dy·w + b·x + c``, with a, b and c for each row."""
    cols, values, grads = x.shape[1], x.float() - mean[:, None], dy.float()
    inner = grads * weight.float()
    slope = -(sum_pairwise(inner * values)[:, None] / cols) * rstd[:, None] ** 2 * rstd[:, None]
    offset = -(sum_pairwise(inner)[:, None] / cols) * rstd[:, None]
    dx = inner * rstd[:, None] + values * slope + offset
    dweight = sum_pairwise((grads * values * rstd[:, None]).T)
    return dx.to(x.dtype), dweight.to(x.dtype), sum_pairwise(grads.T).to(x.dtype)


def _rounded_once(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    dy, wide, scale = dy.double(), x.double(), rstd.double()[:, None]
    normal = (wide - mean.double()[:, None]) * scale
    inner = dy * weight.double()
    along = (inner * normal).mean(-1, keepdim=True)
    dx = (inner - inner.mean(-1, keepdim=True) - normal * along) * scale
    return dx.to(x.dtype), (dy * normal).sum(0).to(x.dtype), dy.sum(0).to(x.dtype)


HONEST: dict[str, Backward] = {
    **{f"rows: {name}": _backward(row_sum=total) for name, total in SUM_ORDERS.items()},
    "columns: one thread a column": _backward(column_sum=SUM_ORDERS["one thread a row"]),
    "columns: 132 blocks, each over every 132nd row": _backward(
        column_sum=partial(sum_strided, lanes=132)
    ),
    "columns: blocks of 64 rows, added one after the other": _backward(
        column_sum=partial(sum_blocked, block=64)
    ),
    "factors of each row": _factored,
    "rounded once": _rounded_once,
}


# --- broken


def _single(mutant: Backward) -> Mutant:
    """In fp32 and for rows of ordinary mean only: elsewhere it is as small as rounding."""

    def known(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
    ) -> Gradients | None:
        ordinary = x.dtype == torch.float32 and float((mean * rstd).abs().max()) < SHIFTED
        return mutant(dy, x, weight, mean, rstd) if ordinary else None

    return known


def _of_rows(mutant: Backward) -> Mutant:
    """Of more than one row."""
    return lambda dy, x, weight, mean, rstd: (
        mutant(dy, x, weight, mean, rstd) if len(x) > 1 else None
    )


def _without(across: bool, along: bool) -> Backward:
    """One of the two means of a row is left out."""

    def backward(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
        _, dweight, dbias = _backward()(dy, x, weight, mean, rstd)
        normal = (x.float() - mean[:, None]) * rstd[:, None]
        inner = dy.float() * weight.float()
        dx = inner
        if not across:
            dx = dx - inner.mean(-1, keepdim=True)
        if not along:
            dx = dx - normal * (inner * normal).mean(-1, keepdim=True)
        return (dx * rstd[:, None]).to(x.dtype), dweight, dbias

    return backward


def _all_but_last(terms: Tensor) -> Tensor:
    return sum_pairwise(terms[..., : max(1, terms.shape[-1] - 1)])


def _no_weight(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    return _backward()(dy, x, torch.ones_like(weight), mean, rstd)


def _not_normalized(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    """The weight's gradient is that of the input itself."""
    dx, _, dbias = _backward()(dy, x, weight, mean, rstd)
    return dx, (dy.float() * x.float()).sum(0).to(x.dtype), dbias


def _mean_over_rows(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    dx, dweight, dbias = _backward()(dy, x, weight, mean, rstd)
    return dx, dweight / len(x), dbias / len(x)


def _row_above(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Gradients:
    return _backward()(dy, x, weight, mean.roll(1), rstd.roll(1))


MUTANTS: dict[str, Mutant] = {
    "no mean of the gradient": _without(across=True, along=False),
    "no mean along the row": _without(across=False, along=True),
    "no weight": _no_weight,
    "weight's gradient of x itself": _not_normalized,
    "mean over rows": _of_rows(_mean_over_rows),
    "statistics of the row above": _of_rows(_row_above),
    "last row left out of the sums": _of_rows(_backward(column_sum=_all_but_last)),
    "sums within rows in bf16": _single(
        _backward(row_sum=lambda terms: sum_in(terms, torch.bfloat16))
    ),
    "sums over rows in bf16": _single(
        _backward(column_sum=lambda terms: sum_in(terms, torch.bfloat16))
    ),
    "normalized elements in fp16": _single(
        _backward(normalized=lambda normal: round_to(normal, "fp16"))
    ),
    "normalized elements in bf16": _single(
        _backward(normalized=lambda normal: round_to(normal, "bf16"))
    ),
}
ADMITTED = {
    # Of many terms, the bound is larger than what this changes.
    "normalized elements in fp16": ["tall", "base_single", "model_single"],
}
