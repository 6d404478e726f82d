"""LayerNorm in Triton: a program a row, or a few short ones. The row is read once, past the caches,
and stays in registers through both sums and the result; weight and bias stay in the L1 cache. Few
registers a thread let other rows be on their way while one is summed up.
"""

import triton
import triton.language as tl

TILE = 1024
"""Elements of a program where rows are shorter."""
BYTES_A_THREAD = 32
"""Four loads. With 64 registers a thread, an SM has 32 warps, and up to 64 KB on their way."""


@triton.jit
def _layer_norm(
    x,
    weight,
    bias,
    out,
    eps,
    rows,
    cols,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    known = col < cols
    inside = (row < rows) & known
    at = row.to(tl.int64) * cols + col
    tile = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    tile -= (tl.sum(tile, axis=1) / cols)[:, None]
    if not WHOLE:
        tile = tl.where(known, tile, 0.0)
    root = tl.rsqrt(tl.sum(tile * tile, axis=1) / cols + eps)
    w = tl.load(weight + col, mask=known, other=0.0, eviction_policy="evict_last").to(tl.float32)
    b = tl.load(bias + col, mask=known, other=0.0, eviction_policy="evict_last").to(tl.float32)
    result = tile * root[:, None] * w + b
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def layer_norm(x, weight, bias, out, eps):
    rows, cols = x.shape
    width = triton.next_power_of_2(cols)
    # The interpreter pays per program, not per element.
    is_cpu = x.device.type == "cpu"
    height = triton.next_power_of_2(rows) if is_cpu else max(TILE // width, 1)
    threads = height * width * x.element_size() // BYTES_A_THREAD
    _layer_norm[(triton.cdiv(rows, height),)](
        x,
        weight,
        bias,
        out,
        eps,
        rows,
        cols,
        ROWS=height,
        COLS=width,
        WHOLE=cols == width,
        num_warps=min(max(threads // 32, 1), 16),
    )
