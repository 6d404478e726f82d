"""Int8 matrix-vector product in Triton for Hopper. A program has a few rows and goes along k with
two tiles of weights in flight; each thread loads 16 bytes at a time and adds up lane by lane, so
that the only sum across threads comes at the end.
"""

import triton
import triton.language as tl

ROWS, STEP, WARPS, STAGES = 2, 1024, 4, 3
"""Of long rows: 2,048 weights a step, 16 bytes for each of 128 threads. Few rows, so that 4,096 of
them still make programs enough for all SMs."""


@triton.jit
def _gemv(x, w, scales, out, n, k, ROWS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row[:, None] < n
    at = w + row[:, None].to(tl.int64) * k
    total = tl.zeros((ROWS, STEP), dtype=tl.float32)
    for start in tl.range(0, k, STEP, num_stages=STAGES):
        col = start + tl.arange(0, STEP)[None, :]
        codes = tl.load(at + col, mask=inside & (col < k), other=0, eviction_policy="evict_first")
        vector = tl.load(x + col, mask=col < k, other=0.0)
        total += codes.to(tl.float32) * vector.to(tl.float32)
    scale = tl.load(scales + row, mask=row < n, other=0.0).to(tl.float32)
    result = tl.sum(total, axis=1) * scale
    tl.store(out + row, result.to(tl.float16), mask=row < n)


def int8_weight_only_gemv(x, w, scales, out):
    n, k = w.shape
    if x.device.type == "cpu":  # the interpreter pays per program
        rows, step = triton.next_power_of_2(n), 512
    else:
        rows, step = (ROWS, STEP) if k >= STEP else (8, 256)
    grid = (triton.cdiv(n, rows),)
    _gemv[grid](x, w, scales, out, n, k, ROWS=rows, STEP=step, STAGES=STAGES, num_warps=WARPS)
