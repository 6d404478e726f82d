"""Softmax in Triton. A row that fits a tile is read once; a wider one is split into chunks.

Wide rows are processed in bands that fit the L2 cache, so that the second pass reads from there.
"""

import torch
import triton
import triton.language as tl

WIDEST_TILE = 32768
CHUNK = 8192
BAND_BYTES = 20 << 20


@triton.jit
def _whole_rows(x, out, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    at = row.to(tl.int64) * cols + col
    tile = tl.load(x + at, mask=inside, other=float("-inf")).to(tl.float32)
    tile = tl.exp(tile - tl.max(tile, axis=1)[:, None])
    tile = tile / tl.sum(tile, axis=1)[:, None]
    tl.store(out + at, tile.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _chunk_sums(x, maxima, sums, cols, chunks, CHUNK: tl.constexpr):
    row = tl.program_id(0) // chunks
    chunk = tl.program_id(0) % chunks
    col = chunk * CHUNK + tl.arange(0, CHUNK)
    tile = tl.load(x + row.to(tl.int64) * cols + col, mask=col < cols, other=float("-inf"))
    tile = tile.to(tl.float32)
    highest = tl.max(tile, axis=0)
    # A chunk of only -inf has sum 0, not NaN; the row may have finite values elsewhere.
    base = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(maxima + tl.program_id(0), highest)
    tl.store(sums + tl.program_id(0), tl.sum(tl.exp(tile - base), axis=0))


@triton.jit
def _chunk_finish(x, out, maxima, sums, cols, chunks, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    # From the last chunk to the first: the last one read is the likeliest to be cached.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    row = program // chunks
    index = tl.arange(0, CHUNKS)
    known = index < chunks
    partial_max = tl.load(maxima + row * chunks + index, mask=known, other=float("-inf"))
    partial_sum = tl.load(sums + row * chunks + index, mask=known, other=0.0)
    highest = tl.max(partial_max, axis=0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(partial_sum * tl.exp(partial_max - base), axis=0)

    col = (program % chunks) * CHUNK + tl.arange(0, CHUNK)
    at = row.to(tl.int64) * cols + col
    tile = tl.load(x + at, mask=col < cols, other=float("-inf")).to(tl.float32)
    tile = tl.exp(tile - highest) / total
    tl.store(out + at, tile.to(out.dtype.element_ty), mask=col < cols)


def softmax(x, out):
    rows, cols = x.shape
    if cols <= WIDEST_TILE:
        _narrow(x, out, rows, cols)
    else:
        _wide(x, out, rows, cols)


def _narrow(x, out, rows, cols):
    width = triton.next_power_of_2(cols)
    # The interpreter pays per program, not per element.
    elements = 1 << 20 if x.device.type == "cpu" else 2048
    height = min(max(elements // width, 1), triton.next_power_of_2(rows))
    warps = min(max(width * height // 512, 1), 32)
    _whole_rows[(triton.cdiv(rows, height),)](
        x, out, rows, cols, ROWS=height, COLS=width, num_warps=warps
    )


def _wide(x, out, rows, cols):
    chunk = 1 << 17 if x.device.type == "cpu" else CHUNK
    chunks = triton.cdiv(cols, chunk)
    band = min(max(BAND_BYTES // (cols * x.element_size()), 1), rows)
    maxima = torch.empty(band * chunks, dtype=torch.float32, device=x.device)
    sums = torch.empty_like(maxima)
    for first in range(0, rows, band):
        some_x, some_out = x[first : first + band], out[first : first + band]
        grid = (some_x.shape[0] * chunks,)
        _chunk_sums[grid](some_x, maxima, sums, cols, chunks, CHUNK=chunk, num_warps=8)
        _chunk_finish[grid](
            some_x,
            some_out,
            maxima,
            sums,
            cols,
            chunks,
            CHUNK=chunk,
            CHUNKS=triton.next_power_of_2(chunks),
            num_warps=8,
        )
