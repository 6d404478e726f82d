"""RMSNorm in Triton. A few programs for each SM stay on the GPU and take rows in turn: a program
reads the weight once, and the next rows are on their way while it writes the last ones. A row is
read once; it stays in registers between its sum and its product.
"""

import torch
import triton
import triton.language as tl

TILE_BYTES = 8192
"""Of the rows that a program takes at a time, where a row is shorter."""
BYTES_IN_FLIGHT = 65536
"""On each SM: more than its share of bandwidth times latency, about 40 KB."""


@triton.jit
def _rms_norm(
    x, weight, out, eps, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr
):
    col = tl.arange(0, COLS)[None, :]
    w = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
    step = tl.num_programs(0) * ROWS
    for first in tl.range(tl.program_id(0) * ROWS, rows, step, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (col < cols)
        at = row.to(tl.int64) * cols + col
        tile = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        root = tl.rsqrt(tl.sum(tile * tile, axis=1) / cols + eps)
        tl.store(out + at, (tile * root[:, None] * w).to(out.dtype.element_ty), mask=inside)


def launch(x, weight, out, eps, tile_bytes=TILE_BYTES, stages=2):
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
    warps = min(max(height * width // 1024, 4), 16)
    _rms_norm[(programs,)](
        x, weight, out, eps, rows, cols, ROWS=height, COLS=width, STAGES=stages, num_warps=warps
    )


def rms_norm(x, weight, out, eps):
    launch(x, weight, out, eps)
