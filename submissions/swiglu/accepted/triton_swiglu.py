"""SwiGLU in Triton: each program has a block of columns of one row, or of several short ones."""

import triton
import triton.language as tl


@triton.jit
def _block(x, out, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    blocks = tl.cdiv(cols, COLS)
    row = (tl.program_id(0) // blocks) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % blocks) * COLS + tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    row = row.to(tl.int64)
    gate = tl.load(x + row * 2 * cols + col, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * cols + cols + col, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row * cols + col, result.to(out.dtype.element_ty), mask=inside)


def swiglu(x, out):
    rows, cols = out.shape
    # The interpreter pays per program, not per element.
    elements = 1 << 20 if x.device.type == "cpu" else 1024
    width = min(triton.next_power_of_2(cols), elements)
    height = min(elements // width, triton.next_power_of_2(rows))
    grid = (triton.cdiv(rows, height) * triton.cdiv(cols, width),)
    _block[grid](x, out, rows, cols, ROWS=height, COLS=width)
