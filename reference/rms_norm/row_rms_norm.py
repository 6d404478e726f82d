"""RMSNorm in Triton: a program a row, or a few short ones. The row is read once, past the caches,
and stays in registers between its sum and the result; the weight stays in the L1 cache. Few
registers a thread let other rows be on their way while one is summed up.
"""

from math import log2

import triton
import triton.language as tl

TILE = 1024
"""Elements of a program where rows are shorter."""
BYTES_A_THREAD = 32
"""About: four loads. With 64 registers a thread, an SM has 32 warps, and 64 KB on their way."""


@triton.jit
def _rms_norm(x, weight, out, eps, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    at = row.to(tl.int64) * cols + col
    tile = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(tile * tile, axis=1) / cols + eps)
    w = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
    result = tile * root[:, None] * w.to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def rms_norm(x, weight, out, eps):
    rows, cols = x.shape
    width = triton.next_power_of_2(cols)
    # The interpreter pays per program, not per element.
    is_cpu = x.device.type == "cpu"
    height = triton.next_power_of_2(rows) if is_cpu else max(TILE // width, 1)
    warps = height * cols * x.element_size() / BYTES_A_THREAD / 32
    _rms_norm[(triton.cdiv(rows, height),)](
        x,
        weight,
        out,
        eps,
        rows,
        cols,
        ROWS=height,
        COLS=width,
        num_warps=2 ** min(max(round(log2(warps)), 0), 5),
    )
