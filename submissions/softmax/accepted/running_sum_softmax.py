"""Softmax in Triton with one program a row: a running maximum and sum over blocks of 1024."""

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _softmax_rows(x, out, cols, BLOCK: tl.constexpr):
    x += tl.program_id(0).to(tl.int64) * cols
    out += tl.program_id(0).to(tl.int64) * cols
    index = tl.arange(0, BLOCK)
    highest = float("-inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        inside = start + index < cols
        tile = tl.load(x + start + index, mask=inside, other=float("-inf")).to(tl.float32)
        grown = tl.maximum(highest, tl.max(tile, axis=0))
        # Nothing finite was seen yet: exp(-inf - 0) is 0, and exp(-inf + inf) would be NaN.
        base = tl.where(grown == float("-inf"), 0.0, grown)
        total = total * tl.exp(highest - base) + tl.sum(tl.exp(tile - base), axis=0)
        highest = grown
    for start in range(0, cols, BLOCK):
        inside = start + index < cols
        tile = tl.load(x + start + index, mask=inside, other=float("-inf")).to(tl.float32)
        tile = tl.exp(tile - highest) / total
        tl.store(out + start + index, tile.to(out.dtype.element_ty), mask=inside)


def softmax(x, out):
    rows, cols = x.shape
    _softmax_rows[(rows,)](x, out, cols, BLOCK=BLOCK)
