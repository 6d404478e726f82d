"""Honest grouped matmuls, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grader.numerics import MATMUL_ORDERS, matmul_narrow, round_to

FEW = 64
"""Outputs below which an error of factors looks like rounding."""
TILE = 16
ORDERS = ["k in steps of 16", "k backwards", "split-K, strided"]
"""Orders of sums to try; all are those of a plain matmul."""

Grouped = Callable[[Tensor, Tensor, Tensor], Tensor]
Mutant = Callable[..., Tensor | None]
Product = Callable[[Tensor, Tensor], Tensor]


def magnitude(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    """Sum over k of ``|x·w|``, [tokens, n]."""
    return _rows(torch.matmul, x.abs(), w.abs(), _experts(sizes))


def _experts(sizes: Tensor) -> Tensor:
    """The expert of each token, int64 [tokens]."""
    numbers = torch.arange(len(sizes), device=sizes.device)
    return numbers.repeat_interleave(sizes.long())


def _rows(product: Product, x: Tensor, w: Tensor, experts: Tensor) -> Tensor:
    """Each token times the matrix of its expert, whatever their order."""
    out = x.new_zeros(len(x), w.shape[2])
    for expert in experts.unique().tolist():
        mine = experts == expert
        out[mine] = product(x[mine], w[expert])
    return out


def _grouped(
    product: Product = torch.matmul, route: Callable[[Tensor], Tensor] = _experts
) -> Grouped:
    """A product in fp32, with its own order of sums, or its own idea of a token's expert."""

    def grouped(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
        return _rows(product, x.float(), w.float(), route(sizes)).to(x.dtype)

    return grouped


def _rounded_once(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    return _rows(torch.matmul, x.double(), w.double(), _experts(sizes)).to(x.dtype)


HONEST: dict[str, Grouped] = {
    **{name: _grouped(MATMUL_ORDERS[name]) for name in ORDERS},
    "rounded once": _rounded_once,
}


def _many(mutant: Grouped) -> Mutant:
    def limited(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor | None:
        return mutant(x, w, sizes) if len(x) * w.shape[2] >= FEW else None

    return limited


def _sum_in(dtype: torch.dtype) -> Mutant:
    """Only where partial sums are much larger than results does this show."""

    def mutant(x: Tensor, w: Tensor, sizes: Tensor, values: str) -> Tensor | None:
        if values != "cancelling":
            return None
        return _grouped(partial(matmul_narrow, dtype=dtype))(x, w, sizes)

    return mutant


def _without_last(count: int) -> Mutant:
    def mutant(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor | None:
        if x.shape[1] <= count or len(x) * w.shape[2] < FEW:
            return None
        return _grouped(lambda a, b: a[:, :-count] @ b[:-count])(x, w, sizes)

    return mutant


def _factors_in(name: str) -> Grouped:
    return _grouped(lambda a, b: round_to(a, name) @ round_to(b, name))


def _without_last_tokens(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    """The last token of each group is left at zero."""
    out = _grouped()(x, w, sizes)
    out[(sizes.long().cumsum(0) - 1)[sizes > 0]] = 0
    return out


def _even_groups(sizes: Tensor) -> Tensor:
    tokens = int(sizes.sum())
    return torch.arange(tokens, device=sizes.device) * len(sizes) // tokens


def _of_its_tile(sizes: Tensor) -> Tensor:
    """Tiles of rows that cross from one group to the next take the first row's expert."""
    experts = _experts(sizes)
    return experts[::TILE].repeat_interleave(TILE)[: len(experts)]


def _next(sizes: Tensor) -> Tensor:
    return (_experts(sizes) + 1) % len(sizes)


def _from_the_end(sizes: Tensor) -> Tensor:
    """Sizes in the opposite order."""
    return _experts(sizes.flip(0))


def _without_empty(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor | None:
    """Experts without tokens leave no gap."""
    if bool((sizes > 0).all()):
        return None
    return _grouped(route=lambda sizes: _experts(sizes[sizes > 0]))(x, w, sizes)


MUTANTS: dict[str, Mutant] = {
    "matrix of the next expert": _grouped(route=_next),
    "groups of one size": _grouped(route=_even_groups),
    "empty groups not counted": _without_empty,
    "tiles across groups": _grouped(route=_of_its_tile),
    "sizes in the opposite order": _grouped(route=_from_the_end),
    "last token of a group left out": _without_last_tokens,
    "matrices transposed": lambda x, w, sizes: _grouped()(
        x, w.reshape(len(w), w.shape[2], w.shape[1]).transpose(1, 2), sizes
    ),
    "factors in fp8": _many(_factors_in("fp8")),
    "sum in fp16": _sum_in(torch.float16),
    "sum in bf16": _sum_in(torch.bfloat16),
    "last of k left out": _without_last(1),
    "last 16 of k left out": _without_last(16),
}
