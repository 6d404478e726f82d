"""Int4 matmul with zero points in Triton: each program has one tile, and a group is a step."""

import triton
import triton.language as tl

GROUP = 128


@triton.jit
def _tile(
    a,
    b,
    scales,
    zeros,
    out,
    M,
    N,
    K,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for group in range(K // GROUP):
        k = group * GROUP + tl.arange(0, GROUP)
        a_tile = tl.load(a + row.to(tl.int64) * K + k[None, :], mask=row < M, other=0.0)
        at = k[:, None].to(tl.int64) * (N // 2) + col // 2
        shift = col % 2 * 4
        codes = (tl.load(b + at, mask=col < N, other=0).to(tl.int32) >> shift) & 0xF
        zero_at = group * (N // 2) + col // 2
        zero = (tl.load(zeros + zero_at, mask=col < N, other=0).to(tl.int32) >> shift) & 0xF
        scale = tl.load(scales + group * N + col, mask=col < N, other=0.0).to(tl.float32)
        total += tl.dot(a_tile, (codes - zero).to(tl.float16)) * scale
    at = row.to(tl.int64) * N + col
    tl.store(out + at, total.to(tl.float16), mask=(row < M) & (col < N))


def int4_matmul_zeros(a, b_packed, scales, zeros_packed, out):
    (M, K), N = a.shape, out.shape[1]
    rows, cols = 16 if M <= 16 else 64, 64
    if a.device.type == "cpu":  # the interpreter pays per program, not per element
        rows, cols = (max(16, triton.next_power_of_2(size)) for size in (M, N))
    grid = (triton.cdiv(M, rows), triton.cdiv(N, cols))
    sizes = {"GROUP": GROUP, "ROWS": rows, "COLS": cols}
    _tile[grid](a, b_packed, scales, zeros_packed, out, M, N, K, **sizes)
