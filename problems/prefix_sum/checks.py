"""Honest prefix sums, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import (
    coarsely_in,
    of_rounded_inputs,
    scan_blocked,
    scan_doubling,
    scan_sequential,
    without_tail,
)

TILE = 1024


def magnitude(x: Tensor) -> Tensor:
    """What rounding errors are relative to: the prefix sums of the absolute values."""
    return x.abs().cumsum(0)


def _scan(x: Tensor) -> Tensor:
    return x.cumsum(0)


HONEST: dict[str, Callable[[Tensor], Tensor]] = {
    "one after the other": lambda x: scan_sequential(x),
    "tiles of 1024": lambda x: scan_blocked(x, 1024),
    "tiles of 4096": lambda x: scan_blocked(x, 4096),
    "by doubling": lambda x: scan_doubling(x),
    "rounded once": lambda x: x.double().cumsum(0).float(),
}


def _in_tiles(carry: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor | None]:
    """Tiles whose carry [tiles] is `carry` of their sums [tiles]; None for a single tile."""

    def scan(x: Tensor) -> Tensor | None:
        if len(x) <= TILE:
            return None
        tiles = torch.nn.functional.pad(x, (0, -len(x) % TILE)).view(-1, TILE)
        within = tiles.cumsum(1)
        return (within + carry(within[:, -1])[:, None]).view(-1)[: len(x)]

    return scan


def _before(sums: Tensor) -> Tensor:
    """What a tile's predecessor has."""
    return torch.cat([sums.new_zeros(1), sums[:-1]])


def _exclusive(x: Tensor) -> Tensor:
    return _before(x.cumsum(0))


def _without_first(x: Tensor) -> Tensor:
    x = x.clone()
    x[0] = 0
    return x.cumsum(0)


MUTANTS: dict[str, Callable[..., Tensor | None]] = {
    "computed in fp16": coarsely_in(_scan, torch.float16),
    "computed in bf16": coarsely_in(_scan, torch.bfloat16),
    "inputs in bf16": of_rounded_inputs(_scan, "bf16"),
    "tail left out": without_tail(_scan, TILE),
    "no carry": _in_tiles(torch.zeros_like),
    "carry of the previous tile only": _in_tiles(_before),
    "carry with the tile's own sum": _in_tiles(lambda sums: sums.cumsum(0)),
    "carry of one tile too few": _in_tiles(lambda sums: _before(_before(sums).cumsum(0))),
    "exclusive": _exclusive,
    "without the first element": _without_first,
    "from the end": lambda x: x.flip(0).cumsum(0).flip(0),
}
