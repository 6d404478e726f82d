"""Triton LayerNorm that lets the padding of a row count in its variance: there, the deviation is not
0 but minus the mean.
"""

import triton
import triton.language as tl


@triton.jit
def _row(x, weight, bias, out, eps, cols, COLS: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, COLS)
    inside = col < cols
    tile = tl.load(x + start + col, mask=inside, other=0.0).to(tl.float32)
    tile = tile - tl.sum(tile, axis=0) / cols
    root = tl.rsqrt(tl.sum(tile * tile, axis=0) / cols + eps)
    w = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start + col, (tile * root * w + b).to(out.dtype.element_ty), mask=inside)


def layer_norm(x, weight, bias, out, eps):
    rows, cols = x.shape
    _row[(rows,)](x, weight, bias, out, eps, cols, COLS=triton.next_power_of_2(cols), num_warps=8)
