"""Fp8 matmul in Triton: each program has one tile; a step is one block, whose product is scaled."""

import triton
import triton.language as tl

BLOCK = 128


@triton.jit
def _tile(
    a,
    a_scales,
    b,
    b_scales,
    out,
    M,
    N,
    K,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STEP: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    row_inside, col_inside = row < M, col < N
    a_row, b_row = row[:, None].to(tl.int64) * K, col[None, :].to(tl.int64) * K
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for block in range(K // STEP):
        k = block * STEP + tl.arange(0, STEP)
        a_tile = tl.load(a + a_row + k[None, :], mask=row_inside[:, None], other=0.0)
        b_tile = tl.load(b + b_row + k[:, None], mask=col_inside[None, :], other=0.0)
        row_at, col_at = row * (K // STEP) + block, col // STEP * (K // STEP) + block
        row_scale = tl.load(a_scales + row_at, mask=row_inside, other=0.0)
        col_scale = tl.load(b_scales + col_at, mask=col_inside, other=0.0)
        total += tl.dot(a_tile, b_tile) * row_scale[:, None] * col_scale[None, :]
    at = row[:, None].to(tl.int64) * N + col[None, :]
    result = total.to(out.dtype.element_ty)
    tl.store(out + at, result, mask=row_inside[:, None] & col_inside[None, :])


def fp8_matmul(a, a_scales, b, b_scales, out):
    (M, K), N = a.shape, len(b)
    rows, cols = 64, 64
    if a.device.type == "cpu":  # the interpreter pays per program, not per element
        rows, cols = (max(16, triton.next_power_of_2(size)) for size in (M, N))
    grid = (triton.cdiv(M, rows), triton.cdiv(N, cols))
    _tile[grid](a, a_scales, b, b_scales, out, M, N, K, ROWS=rows, COLS=cols, STEP=BLOCK)
