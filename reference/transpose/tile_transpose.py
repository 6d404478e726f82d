"""Transpose in Triton, tile by tile: a tile is read row by row and written column by column, and
turned on the way in shared memory, so that loads and stores of a warp both lie side by side."""

import triton
import triton.language as tl

TILE_BYTES = 32768
SMALL_TILE_BYTES = 4096
"""Of matrices with few large tiles for each SM: loads of one then run beside stores of another."""
SMALL_BYTES = 16 << 20
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
    tile_bytes = TILE_BYTES if x.numel() * x.element_size() > SMALL_BYTES else SMALL_TILE_BYTES
    elements = tile_bytes // x.element_size()
    side = 1 << elements.bit_length() // 2
    width = min(side, triton.next_power_of_2(cols))
    height = elements // width
    grid = (triton.cdiv(rows, height) * triton.cdiv(cols, width),)
    _transpose[grid](x, out, rows, cols, ROWS=height, COLS=width, num_warps=WARPS)
