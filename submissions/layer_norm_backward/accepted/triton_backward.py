"""LayerNorm's gradients in two Triton kernels: one has a row a program, the other a block of columns,
and reads both matrices again.
"""

import triton
import triton.language as tl


@triton.jit
def _row(dy, x, weight, mean, rstd, dx, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (col < cols)
    at = row.to(tl.int64) * cols + col
    scale = tl.load(rstd + row, mask=row < rows, other=0.0)
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    normal = (values - tl.load(mean + row, mask=row < rows, other=0.0)) * scale
    w = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
    inner = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32) * w
    across = (tl.sum(inner, axis=1) / cols)[:, None]
    along = (tl.sum(inner * normal, axis=1) / cols)[:, None]
    result = (inner - across - normal * along) * scale
    tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _columns(
    dy, x, mean, rstd, dweight, dbias, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr
):
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    weight_sum = tl.zeros([ROWS, COLS], tl.float32)
    bias_sum = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        at = row.to(tl.int64) * cols + col
        grads = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        center = tl.load(mean + row, mask=row < rows, other=0.0)
        scale = tl.load(rstd + row, mask=row < rows, other=0.0)
        weight_sum += grads * (values - center) * scale
        bias_sum += grads
    kind = dweight.dtype.element_ty
    tl.store(dweight + col, tl.sum(weight_sum, axis=0)[None, :].to(kind), mask=col < cols)
    tl.store(dbias + col, tl.sum(bias_sum, axis=0)[None, :].to(kind), mask=col < cols)


def layer_norm_backward(dy, x, weight, mean, rstd, dx, dweight, dbias):
    rows, cols = x.shape
    width = triton.next_power_of_2(cols)
    # The interpreter pays per program, not per element.
    is_cpu = x.device.type == "cpu"
    elements = 1 << 20 if is_cpu else 2048
    height = min(max(elements // width, 1), triton.next_power_of_2(rows))
    _row[(triton.cdiv(rows, height),)](
        dy, x, weight, mean, rstd, dx, rows, cols, ROWS=height, COLS=width,
        num_warps=min(max(width * height // 512, 1), 16),
    )  # fmt: skip
    tall, wide = (height, width) if is_cpu else (64, 32)
    _columns[(triton.cdiv(cols, wide),)](
        dy, x, mean, rstd, dweight, dbias, rows, cols, ROWS=tall, COLS=wide
    )
