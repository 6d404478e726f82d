"""LayerNorm in Triton. A few programs for each SM stay on the GPU and take rows in turn: a program
reads weight and bias once, and the next rows are on their way while it writes the last ones. A row
is read once; it stays in registers through both sums and the result.
"""

import torch
import triton
import triton.language as tl

TILE_BYTES = 8192
"""Of the rows that a program takes at a time, where a row is shorter."""
BYTES_IN_FLIGHT = 65536
"""On each SM: more than its share of bandwidth times latency, about 40 KB."""


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
    STAGES: tl.constexpr,
):
    col = tl.arange(0, COLS)[None, :]
    known = col < cols
    w = tl.load(weight + col, mask=known, other=0.0).to(tl.float32)
    b = tl.load(bias + col, mask=known, other=0.0).to(tl.float32)
    step = tl.num_programs(0) * ROWS
    for first in tl.range(tl.program_id(0) * ROWS, rows, step, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & known
        at = row.to(tl.int64) * cols + col
        tile = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        tile = tl.where(known, tile - (tl.sum(tile, axis=1) / cols)[:, None], 0.0)
        root = tl.rsqrt(tl.sum(tile * tile, axis=1) / cols + eps)
        result = tile * root[:, None] * w + b
        tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def launch(x, weight, bias, out, eps, tile_bytes=TILE_BYTES, stages=2):
    rows, cols = x.shape
    width = triton.next_power_of_2(cols)
    row_bytes = width * x.element_size()
    if x.device.type == "cpu":  # the interpreter pays per program, not per element
        height, programs = triton.next_power_of_2(rows), 1
    else:
        height = max(tile_bytes // row_bytes, 1)
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        each = max(BYTES_IN_FLIGHT // (height * row_bytes), 1)
        programs = min(triton.cdiv(rows, height), sms * each)
    _layer_norm[(programs,)](
        x,
        weight,
        bias,
        out,
        eps,
        rows,
        cols,
        ROWS=height,
        COLS=width,
        STAGES=stages,
        num_warps=min(max(height * width // 1024, 4), 16),
    )


def layer_norm(x, weight, bias, out, eps):
    launch(x, weight, bias, out, eps)
