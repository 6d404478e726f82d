"""Sum, LayerNorm and GELU in Triton. A few programs for each SM stay on the GPU and take rows in
turn: a program reads weight and bias once, and loads the next rows of both inputs while it finishes
the last ones. The sum stays in registers.
"""

import torch
import triton
import triton.language as tl

ROOT_OF_HALF = tl.constexpr(0.7071067811865476)
TILE_BYTES = 4096
"""Of the rows of one input that a program takes at a time, where a row is shorter."""
BYTES_IN_FLIGHT = 65536
"""On each SM: more than its share of bandwidth times latency, about 40 KB."""


@triton.jit
def _chain(
    x,
    residual,
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
        tile += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        tile = tl.where(known, tile - (tl.sum(tile, axis=1) / cols)[:, None], 0.0)
        root = tl.rsqrt(tl.sum(tile * tile, axis=1) / cols + eps)
        normal = tile * root[:, None] * w + b
        result = 0.5 * normal * (1 + tl.erf(normal * ROOT_OF_HALF))
        tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def launch(x, residual, weight, bias, out, eps, tile_bytes=TILE_BYTES, stages=2):
    rows, cols = x.shape
    width = triton.next_power_of_2(cols)
    row_bytes = width * x.element_size()
    if x.device.type == "cpu":  # the interpreter pays per program, not per element
        height, programs = triton.next_power_of_2(rows), 1
    else:
        height = max(tile_bytes // row_bytes, 1)
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        each = max(BYTES_IN_FLIGHT // (2 * height * row_bytes), 1)
        programs = min(triton.cdiv(rows, height), sms * each)
    _chain[(programs,)](
        x,
        residual,
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


def add_layer_norm_gelu(x, residual, weight, bias, out, eps):
    launch(x, residual, weight, bias, out, eps)
