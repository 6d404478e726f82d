"""Softmax in Gluon, Triton's language with explicit layouts: one program a row, and a running
maximum and sum over blocks of 2048 that each thread holds four elements at a time of."""
# grade: device=cuda

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BLOCK = 2048
WARPS = 8


@gluon.jit
def _loaded(x, start, cols, BLOCK: gl.constexpr, layout: gl.constexpr):
    index = start + gl.arange(0, BLOCK, layout=layout)
    return gl.load(x + index, mask=index < cols, other=float("-inf")).to(gl.float32)


@gluon.jit
def _softmax_rows(x, out, cols, BLOCK: gl.constexpr, WARPS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [WARPS], [0])
    x += gl.program_id(0).to(gl.int64) * cols
    out += gl.program_id(0).to(gl.int64) * cols
    highest = float("-inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        tile = _loaded(x, start, cols, BLOCK, layout)
        grown = gl.maximum(highest, gl.max(tile, axis=0))
        # Nothing finite was seen yet: exp(-inf - 0) is 0, and exp(-inf + inf) would be NaN.
        base = gl.where(grown == float("-inf"), 0.0, grown)
        total = total * gl.exp(highest - base) + gl.sum(gl.exp(tile - base), axis=0)
        highest = grown
    for start in range(0, cols, BLOCK):
        tile = gl.exp(_loaded(x, start, cols, BLOCK, layout) - highest) / total
        index = start + gl.arange(0, BLOCK, layout=layout)
        gl.store(out + index, tile.to(out.dtype.element_ty), mask=index < cols)


def softmax(x, out):
    rows, cols = x.shape
    _softmax_rows[(rows,)](x, out, cols, BLOCK=BLOCK, WARPS=WARPS, num_warps=WARPS)
