"""Honest transposes, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import elementwise_mutants

TILE = 32


def _transpose(x: Tensor) -> Tensor:
    return x.t().contiguous()


def _in_tiles(x: Tensor) -> Tensor:
    """Tile by tile, those at the edges smaller."""
    rows = [[tile.t() for tile in band.split(TILE, dim=1)] for band in x.split(TILE, dim=0)]
    return torch.cat([torch.cat(band, dim=0) for band in rows], dim=1)


def _tiles_not_turned(x: Tensor) -> Tensor | None:
    """Each tile is in its place, its content as it was."""
    return _of_tiles(x, lambda tiles: tiles.permute(2, 0, 1, 3))


def _tiles_not_moved(x: Tensor) -> Tensor | None:
    """The content of each tile is turned, but a tile of a square matrix stays in its place."""
    square = x.shape[0] == x.shape[1]
    return _of_tiles(x, lambda tiles: tiles.permute(0, 3, 2, 1)) if square else None


def _of_tiles(x: Tensor, order: Callable[[Tensor], Tensor]) -> Tensor | None:
    """A matrix of whole tiles, seen as [down, row, across, column], in another order."""
    rows, cols = x.shape
    if rows % TILE or cols % TILE:
        return None
    tiles = x.view(rows // TILE, TILE, cols // TILE, TILE)
    return order(tiles).reshape(cols, rows)


def _flushed(x: Tensor) -> Tensor:
    """Denormal numbers become 0, as in arithmetic with flush-to-zero."""
    return _transpose(torch.where(x.abs() < torch.finfo(x.dtype).tiny, 0.0, x))


HONEST = {"in tiles": _in_tiles, "column by column": lambda x: torch.stack(x.unbind(dim=1))}

MUTANTS = elementwise_mutants(_transpose) | {
    "only another shape": lambda x: x.reshape(x.shape[1], x.shape[0]).clone(),
    "tiles not turned": _tiles_not_turned,
    "tiles not moved": _tiles_not_moved,
    "turned by 90 degrees": lambda x: torch.rot90(x).contiguous(),
    "denormals flushed": _flushed,
}
del MUTANTS["rounded toward zero"]  # what is copied is not rounded
