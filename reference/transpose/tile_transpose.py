"""Transpose in Triton, tile by tile: a tile is read row by row and written column by column, and
turned on the way in shared memory, so that loads and stores of a warp both lie side by side."""

import triton
import triton.language as tl

TILE_BYTES = 32768
WARPS = 8


@triton.jit
def _transpose(x, out, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    across = tl.cdiv(cols, COLS)
    tile = tl.program_id(0)
    row = (tile // across) * ROWS + tl.arange(0, ROWS)
    col = (tile % across) * COLS + tl.arange(0, COLS)
    row, col = row.to(tl.int64), col.to(tl.int64)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    values = tl.load(x + row[:, None] * cols + col[None, :], mask=inside)
    turned = (col < cols)[:, None] & (row < rows)[None, :]
    tl.store(out + col[:, None] * rows + row[None, :], tl.trans(values), mask=turned)


def transpose(x, out):
    rows, cols = x.shape
    side = 1 << (TILE_BYTES // x.element_size()).bit_length() // 2
    width = min(side, triton.next_power_of_2(cols))
    height = TILE_BYTES // x.element_size() // width
    grid = (triton.cdiv(rows, height) * triton.cdiv(cols, width),)
    _transpose[grid](x, out, rows, cols, ROWS=height, COLS=width, num_warps=WARPS)
