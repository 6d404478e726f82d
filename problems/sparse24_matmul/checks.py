"""Honest sparse matmuls, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grader.numerics import MATMUL_ORDERS, matmul_narrow, round_to

FEW = 64
"""Outputs below which an error of factors looks like rounding."""

Matmul = Callable[[Tensor, Tensor], Tensor]
Mutant = Callable[..., Tensor | None]


def magnitude(x: Tensor, w: Tensor) -> Tensor:
    """Sum over k of ``|x·w|``, [m, n]."""
    return x.abs() @ w.abs().T


MOST_GATHERED = 1 << 27
"""Elements that are held at a time."""


def compress(w: Tensor) -> tuple[Tensor, Tensor]:
    """The two values that each group of four keeps, and their places in it, in ascending order:
    [n, k // 4, 2]. Zeros fill a group of fewer."""
    groups = w.unflatten(1, (-1, 4))
    places = (groups != 0).float().topk(2, dim=2).indices.sort(dim=2).values
    return groups.gather(2, places), places


def expand(values: Tensor, places: Tensor) -> Tensor:
    """The matrix [n, k] of `compress`."""
    groups = values.new_zeros(*values.shape[:2], 4)
    return groups.scatter_(2, places, values).flatten(1)


def _matmul(product: Callable[[Tensor, Tensor], Tensor]) -> Matmul:
    """A dense product in fp32 with its own order of sums."""
    return lambda x, w: product(x.float(), w.float().T).half()


def _gathered(x: Tensor, w: Tensor) -> Tensor:
    """For each output column, the activations that meet a weight, and no others."""
    values, places = compress(w.float())
    starts = 4 * torch.arange(places.shape[1], device=w.device)
    met, kept = (places + starts[:, None]).flatten(1), values.flatten(1)  # [n, k // 2]
    parts = x.float().split(max(1, MOST_GATHERED // met.numel()))
    return torch.cat([(part[:, met] * kept).sum(-1).half() for part in parts])


def _rounded_once(x: Tensor, w: Tensor) -> Tensor:
    return (x.double() @ w.double().T).half()


HONEST: dict[str, Matmul] = {
    **{name: _matmul(product) for name, product in MATMUL_ORDERS.items()},
    "gathered": _gathered,
    "rounded once": _rounded_once,
}


def _with_places(change: Callable[[Tensor], Tensor], *unless: str) -> Mutant:
    """Weights expanded to other places, except where they would be the same ones."""

    def mutant(x: Tensor, w: Tensor, values: str) -> Tensor | None:
        if values in unless:
            return None
        kept, places = compress(w.float())
        return (x.float() @ expand(kept, change(places)).T).half()

    return mutant


def _with_values(change: Callable[[Tensor], Tensor]) -> Mutant:
    def mutant(x: Tensor, w: Tensor) -> Tensor:
        kept, places = compress(w.float())
        return (x.float() @ expand(change(kept), places).T).half()

    return mutant


def _one_kept(values: Tensor) -> Tensor:
    return values * torch.tensor([1.0, 0.0], device=values.device)


def _largest_of_eight(x: Tensor, w: Tensor) -> Tensor | None:
    """Pruned once more: the two largest of eight."""
    if w.shape[1] % 8:
        return None
    groups = w.float().unflatten(1, (-1, 8))
    places = groups.abs().topk(2, dim=2).indices
    kept = torch.zeros_like(groups).scatter_(2, places, groups.gather(2, places))
    return (x.float() @ kept.flatten(1).T).half()


def _many(mutant: Matmul) -> Mutant:
    def limited(x: Tensor, w: Tensor) -> Tensor | None:
        return mutant(x, w) if len(x) * len(w) >= FEW else None

    return limited


def _factors_in(name: str) -> Mutant:
    return _many(_matmul(lambda a, b: round_to(a, name) @ round_to(b, name)))


def _without_last(count: int) -> Mutant:
    def mutant(x: Tensor, w: Tensor, values: str) -> Tensor | None:
        if values in ("one_hot", "fewer") or w.shape[1] <= count or len(x) * len(w) < FEW:
            return None
        return _matmul(lambda a, b: a[:, :-count] @ b[:-count])(x, w)

    return mutant


def _sum_in(dtype: torch.dtype) -> Mutant:
    """Only where partial sums are much larger than results does this show."""

    def mutant(x: Tensor, w: Tensor, values: str) -> Tensor | None:
        if values != "cancelling":
            return None
        return _matmul(partial(matmul_narrow, dtype=dtype))(x, w)

    return mutant


MUTANTS: dict[str, Mutant] = {
    "places of a pair swapped": _with_places(lambda places: places.flip(2)),
    "first two places": _with_places(
        lambda places: torch.zeros_like(places) + torch.tensor([0, 1]).to(places.device), "first"
    ),
    "places of the next row": _with_places(lambda places: places.roll(-1, 0), "first", "last"),
    "places from the other end": _with_places(lambda places: 3 - places),
    "one weight of a group": _with_values(_one_kept),
    "two of eight": _largest_of_eight,
    "last group left out": _without_last(4),
    "last 16 of k left out": _without_last(16),
    "factors in bf16": _factors_in("bf16"),
    "factors in fp8": _factors_in("fp8"),
    "sum in fp16": _sum_in(torch.float16),
    "sum in bf16": _sum_in(torch.bfloat16),
}
