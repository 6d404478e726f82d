"""Int8 matmul in Triton: each program has one tile, sums in int32, and scales it."""

import triton
import triton.language as tl


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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a_at = row[:, None].to(tl.int64) * K + k[None, :]
        b_at = col[None, :].to(tl.int64) * K + k[:, None]
        a_tile = tl.load(a + a_at, mask=(row[:, None] < M) & (k[None, :] < K), other=0)
        b_tile = tl.load(b + b_at, mask=(col[None, :] < N) & (k[:, None] < K), other=0)
        total = tl.dot(a_tile, b_tile, total, out_dtype=tl.int32)
    row_scale = tl.load(a_scales + row, mask=row < M, other=0.0)[:, None]
    col_scale = tl.load(b_scales + col, mask=col < N, other=0.0)[None, :]
    result = total.to(tl.float32) * row_scale * col_scale
    at = row[:, None].to(tl.int64) * N + col[None, :]
    tl.store(out + at, result.to(tl.float16), mask=(row[:, None] < M) & (col[None, :] < N))


def int8_dynamic_matmul(a, a_scales, b, b_scales, out):
    (M, K), N = a.shape, len(b)
    rows, cols = 64, 128
    if a.device.type == "cpu":  # the interpreter pays per program, not per element
        rows, cols = (max(16, triton.next_power_of_2(size)) for size in (M, N))
    grid = (triton.cdiv(M, rows), triton.cdiv(N, cols))
    sizes = {"BLOCK_M": rows, "BLOCK_N": cols, "BLOCK_K": 128}
    _tile[grid](a, a_scales, b, b_scales, out, M, N, K, **sizes, num_warps=4, num_stages=3)
