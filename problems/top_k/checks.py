"""Honest selections of the k largest, which the check must accept, and broken ones, which it must
reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import Mutate, of_rounded_inputs

TILE = 1024

TopK = Callable[..., Tensor | None]


def _top(x: Tensor, k: int) -> Tensor:
    return torch.topk(x, k, dim=-1).values


def _running(x: Tensor, k: int) -> Tensor:
    """The best so far, merged with each tile of columns."""
    best = x[:, :0]
    for tile in x.split(TILE, dim=1):
        merged = torch.cat([best, tile], dim=1)
        best = _top(merged, min(k, merged.shape[1]))
    return best


def _by_maxima(x: Tensor, k: int) -> Tensor:
    """The maximum, k times; each is struck out before the next."""
    x = x.clone()
    found = []
    for _ in range(k):
        value, at = x.max(dim=1, keepdim=True)
        found.append(value)
        x.scatter_(1, at, -torch.inf)
    return torch.cat(found, dim=1)


HONEST: dict[str, TopK] = {"best so far": _running, "maxima": _by_maxima}


def _distinct(x: Tensor, k: int) -> Tensor | None:
    """Strikes out every equal number with the maximum: ties count once."""
    x = x.clone()
    found = []
    for _ in range(k):
        value = x.amax(dim=1, keepdim=True)
        found.append(value)
        x.masked_fill_(x == value, -torch.inf)
    return torch.cat(found, dim=1)


def _one_of_each_part(x: Tensor, k: int) -> Tensor | None:
    """The maxima of k parts of a row, sorted: two of the best may lie in one part."""
    if x.shape[1] < 2 * k:
        return None
    parts = torch.stack([part.amax(dim=1) for part in x.tensor_split(k, dim=1)], dim=1)
    return parts.sort(dim=1, descending=True).values


def _filled_with_zeros(x: Tensor, k: int) -> Tensor:
    return _top(torch.nn.functional.pad(x, (0, k)), k)


def _without_tail(x: Tensor, k: int) -> Tensor | None:
    """Whole tiles of 256 columns only."""
    whole = x.shape[1] // 256 * 256
    return _top(x[:, :whole], k) if k <= whole < x.shape[1] else None


def _by_magnitude(x: Tensor, k: int) -> Tensor:
    return x.gather(1, torch.topk(x.abs(), k, dim=-1).indices)


def _rounded(name: str) -> Mutate:
    return of_rounded_inputs(_top, name)


MUTANTS: dict[str, TopK] = {
    "ascending": lambda x, k: _top(x, k).flip(1),
    "smallest": lambda x, k: torch.topk(x, k, dim=-1, largest=False).values,
    "first k": lambda x, k: x[:, :k].clone(),
    "ties once": _distinct,
    "one of each part": _one_of_each_part,
    "filled with zeros": _filled_with_zeros,
    "tail left out": _without_tail,
    "by magnitude": _by_magnitude,
    "in bf16": _rounded("bf16"),
    "in TF32": _rounded("tf32"),
}

ADMITTED = {
    # The best may all lie in whole tiles, or in parts of their own.
    "tail left out": ["maximum", "primes", "tile_plus_one", "negative", "masked", "long", "small"],
    "one of each part": ["maximum", "practice"],
}
