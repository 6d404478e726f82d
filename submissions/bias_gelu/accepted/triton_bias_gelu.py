"""Bias and GELU in Triton: a row's piece for each program, its rows one after the other."""

import triton
import triton.language as tl

ROWS = 64
WIDEST = 4096


@triton.jit
def _bias_gelu(x, bias, out, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    added = tl.load(bias + col, mask=col < cols).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for i in range(0, tl.minimum(ROWS, rows - first)):
        at = (first + i) * cols + col
        value = tl.load(x + at, mask=col < cols).to(tl.float32) + added
        inner = 1.5957691216057308 * (value + 0.044715 * value * value * value)
        result = value / (1.0 + tl.exp(-inner))
        tl.store(out + at, result.to(out.dtype.element_ty), mask=col < cols)


def bias_gelu(x, bias, out):
    rows, cols = x.shape
    width = min(triton.next_power_of_2(cols), WIDEST)
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(cols, width))
    _bias_gelu[grid](x, bias, out, rows, cols, ROWS=ROWS, COLS=width)
