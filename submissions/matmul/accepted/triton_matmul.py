"""Matmul in Triton: each program has one tile, and goes through k in steps."""

import torch
import triton
import triton.language as tl


@triton.jit
def _tile(
    a,
    b,
    out,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    steps = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        a_k, b_k = start + steps[None, :], start + steps[:, None]
        a_at = row.to(tl.int64) * K + a_k
        b_at = b_k.to(tl.int64) * N + col
        a_tile = tl.load(a + a_at, mask=(row < M) & (a_k < K), other=0.0)
        b_tile = tl.load(b + b_at, mask=(b_k < K) & (col < N), other=0.0)
        total = tl.dot(a_tile.to(OPERAND), b_tile.to(OPERAND), total)
    at = row.to(tl.int64) * N + col
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(row < M) & (col < N))


def matmul(a, b, out):
    (M, K), N = a.shape, b.shape[1]
    rows, cols = 128, 128
    operand = tl.bfloat16 if a.dtype == torch.bfloat16 else tl.float16
    if a.device.type == "cpu":  # the interpreter pays per program, and knows no products of bf16
        rows, cols = (max(16, triton.next_power_of_2(size)) for size in (M, N))
        operand = tl.float32
    grid = (triton.cdiv(M, rows), triton.cdiv(N, cols))
    sizes = {"BLOCK_M": rows, "BLOCK_N": cols, "BLOCK_K": 64}
    _tile[grid](a, b, out, M, N, K, **sizes, OPERAND=operand, num_warps=8, num_stages=3)
