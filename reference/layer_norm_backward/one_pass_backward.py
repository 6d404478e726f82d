"""LayerNorm's gradients in Triton. As many programs as the GPU runs at a time take rows in turn,
with the weight and their shares of both column sums in registers. So dy and x are read once. The
shares go to a workspace, which a second kernel sums.
"""

import torch
import triton
import triton.language as tl

TILE_ELEMENTS = 4096
"""Of the rows that a program takes at a time, where a row is shorter."""
BYTES_IN_FLIGHT = 65536
"""On each SM: more than its share of bandwidth times latency, about 40 KB."""
COLUMNS = 64


@triton.jit
def _rows(
    dy,
    x,
    weight,
    mean,
    rstd,
    dx,
    shares,
    rows,
    cols,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STAGES: tl.constexpr,
):
    col = tl.arange(0, COLS)[None, :]
    known = col < cols
    w = tl.load(weight + col, mask=known, other=0.0).to(tl.float32)
    dweight = tl.zeros([ROWS, COLS], tl.float32)
    dbias = tl.zeros([ROWS, COLS], tl.float32)
    step = tl.num_programs(0) * ROWS
    for first in tl.range(tl.program_id(0) * ROWS, rows, step, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & known
        at = row.to(tl.int64) * cols + col
        grads = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        center = tl.load(mean + row, mask=row < rows, other=0.0)
        scale = tl.load(rstd + row, mask=row < rows, other=0.0)
        # Beyond the row, what this gives meets a gradient of 0.
        normal = (values - center) * scale
        inner = grads * w
        across = tl.sum(inner, axis=1) / cols
        along = tl.sum(inner * normal, axis=1) / cols
        result = (inner - across[:, None] - normal * along[:, None]) * scale
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)
        dweight += grads * normal
        dbias += grads
    share = shares + tl.program_id(0) * 2 * cols + tl.arange(0, COLS)
    tl.store(share, tl.sum(dweight, axis=0), mask=tl.arange(0, COLS) < cols)
    tl.store(share + cols, tl.sum(dbias, axis=0), mask=tl.arange(0, COLS) < cols)


@triton.jit
def _columns(shares, dweight, dbias, count, cols, SHARES: tl.constexpr, COLS: tl.constexpr):
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    total = tl.zeros([SHARES, COLS], tl.float32)
    for first in range(0, count, SHARES):
        share = first + tl.arange(0, SHARES)[:, None]
        inside = (share < count) & (col < 2 * cols)
        total += tl.load(shares + share * 2 * cols + col, mask=inside, other=0.0)
    result = tl.sum(total, axis=0)[None, :]
    kind = dweight.dtype.element_ty
    tl.store(dweight + col, result.to(kind), mask=col < cols)
    tl.store(dbias + col - cols, result.to(kind), mask=(col >= cols) & (col < 2 * cols))


def launch(dy, x, weight, mean, rstd, dx, dweight, dbias, elements=TILE_ELEMENTS, stages=2):
    rows, cols = x.shape
    width = triton.next_power_of_2(cols)
    if x.device.type == "cpu":  # the interpreter pays per program, not per element
        height, programs, columns = triton.next_power_of_2(triton.cdiv(rows, 2)), 2, width
    else:
        height, columns = max(elements // width, 1), COLUMNS
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        each = max(BYTES_IN_FLIGHT // (2 * height * width * x.element_size()), 1)
        programs = min(triton.cdiv(rows, height), sms * each)
    shares = torch.empty(programs, 2, cols, dtype=torch.float32, device=x.device)
    _rows[(programs,)](
        dy,
        x,
        weight,
        mean,
        rstd,
        dx,
        shares,
        rows,
        cols,
        ROWS=height,
        COLS=width,
        STAGES=stages,
        num_warps=min(max(height * width // 512, 4), 32),
    )
    _columns[(triton.cdiv(2 * cols, columns),)](
        shares, dweight, dbias, programs, cols, SHARES=32, COLS=columns, num_warps=4
    )


def layer_norm_backward(dy, x, weight, mean, rstd, dx, dweight, dbias):
    launch(dy, x, weight, mean, rstd, dx, dweight, dbias)
