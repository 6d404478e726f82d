"""Bias and GELU in Triton. A program has a tile of rows and columns, so that it loads its columns'
biases once for all of its rows. Where rows are a multiple of 16 bytes, columns beyond a multiple of
the tile are masked 16 bytes at a time; a whole tile needs no mask. Other rows that are long enough
are taken as one vector, in blocks that begin at multiples of 16 bytes though the rows do not."""

import triton
import triton.language as tl

TILE, HALF_TILE = 1024, 4096
"""Elements of a tile; and of 16-bit rows that are a multiple of 16 bytes, so that as many bytes are
on their way."""
WIDEST = 1024
WARPS = 8
SCALE = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
SCALED_CUBIC = tl.constexpr(0.07135481627260025)  # times 0.044715
BLOCK = 2048
"""Elements of a block of that vector: of two rows at most."""


@triton.jit
def _of(value):
    inner = value * (SCALE + SCALED_CUBIC * value * value)
    return value / (1.0 + tl.exp(-inner))


@triton.jit
def _bias_gelu(x, bias, out, rows, cols, across, ROWS: tl.constexpr, COLS: tl.constexpr):
    down = tl.program_id(0) // across
    first_row = down * ROWS
    first_col = (tl.program_id(0) - down * across) * COLS
    row = (first_row + tl.arange(0, ROWS))[:, None]
    col = first_col + tl.arange(0, COLS)
    at = row.to(tl.int64) * cols + col[None, :]
    if (first_row + ROWS <= rows) & (first_col + COLS <= cols):
        added = tl.load(bias + col).to(tl.float32)[None, :]
        value = tl.load(x + at, eviction_policy="evict_first").to(tl.float32)
        tl.store(out + at, _of(value + added).to(out.dtype.element_ty))
    else:
        inside = (row < rows) & (col < cols)[None, :]
        added = tl.load(bias + col, mask=col < cols, other=0.0).to(tl.float32)[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + at, _of(value + added).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _flat_bias_gelu(x, bias, out, elements, cols, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    col = (start % cols).to(tl.int32) + tl.arange(0, BLOCK)
    col = tl.where(col < cols, col, col - cols)
    added = tl.load(bias + col).to(tl.float32)
    at = start + tl.arange(0, BLOCK)
    if start + BLOCK <= elements:
        value = tl.load(x + at, eviction_policy="evict_first").to(tl.float32)
        tl.store(out + at, _of(value + added).to(out.dtype.element_ty))
    else:
        value = tl.load(x + at, mask=at < elements, other=0.0).to(tl.float32)
        tl.store(out + at, _of(value + added).to(out.dtype.element_ty), mask=at < elements)


def bias_gelu(x, bias, out):
    rows, cols = x.shape
    if cols * x.element_size() % 16 and cols >= BLOCK:
        grid = (triton.cdiv(x.numel(), BLOCK),)
        _flat_bias_gelu[grid](x, bias, out, x.numel(), cols, BLOCK=BLOCK, num_warps=WARPS)
        return
    width = min(triton.next_power_of_2(cols), WIDEST)
    is_half = x.element_size() == 2 and cols % 8 == 0
    height = (HALF_TILE if is_half else TILE) // width
    across = triton.cdiv(cols, width)
    grid = (triton.cdiv(rows, height) * across,)
    _bias_gelu[grid](x, bias, out, rows, cols, across, ROWS=height, COLS=width, num_warps=WARPS)
