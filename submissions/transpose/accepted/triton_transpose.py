"""Transpose in Triton: a tile for each program, turned before it is stored."""

import triton
import triton.language as tl

TILE = 64


@triton.jit
def _transpose(x, out, rows, cols, across, TILE: tl.constexpr):
    first_row = (tl.program_id(0) // across).to(tl.int64) * TILE
    first_col = (tl.program_id(0) % across).to(tl.int64) * TILE
    row, col = first_row + tl.arange(0, TILE), first_col + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    tile = tl.load(x + row[:, None] * cols + col[None, :], mask=inside)
    turned = (col < cols)[:, None] & (row < rows)[None, :]
    tl.store(out + col[:, None] * rows + row[None, :], tl.trans(tile), mask=turned)


def transpose(x, out):
    rows, cols = x.shape
    across = triton.cdiv(cols, TILE)
    _transpose[(triton.cdiv(rows, TILE) * across,)](x, out, rows, cols, across, TILE=TILE)
