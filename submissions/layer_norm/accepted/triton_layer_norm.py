"""LayerNorm in Triton: each program has one row, or several short ones, in registers."""

import triton
import triton.language as tl


@triton.jit
def _rows(x, weight, bias, out, eps, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    at = row.to(tl.int64) * cols + col
    tile = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    tile = tl.where(col < cols, tile - (tl.sum(tile, axis=1) / cols)[:, None], 0.0)
    variance = tl.sum(tile * tile, axis=1) / cols
    w = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=col < cols, other=0.0).to(tl.float32)
    result = tile * tl.rsqrt(variance + eps)[:, None] * w + b
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def layer_norm(x, weight, bias, out, eps):
    rows, cols = x.shape
    width = triton.next_power_of_2(cols)
    # The interpreter pays per program, not per element.
    elements = 1 << 20 if x.device.type == "cpu" else 2048
    height = min(max(elements // width, 1), triton.next_power_of_2(rows))
    warps = min(max(width * height // 512, 1), 16)
    _rows[(triton.cdiv(rows, height),)](
        x, weight, bias, out, eps, rows, cols, ROWS=height, COLS=width, num_warps=warps
    )
