"""Matmul in Triton: 128x256 tiles on two warpgroups, whose sums fill the registers, and four stages
of shared memory of 48 KB each, filled by TMA. Where rows are not aligned to its 16 bytes, tiles are
128x128 and loaded by element. Tiles run in groups of rows, so that those in flight share `a` and
`b` in the L2 cache. Where tiles are few, k is split among programs, whose partial sums are added in
a fixed order.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SMS = 132
GROUP_ROWS = 8
"""Rows of tiles in a group: 132 tiles in flight then read about 8 + 17 tiles of operands a step."""
MOST_SPLITS = 16
OPERANDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
"""Of the tensor cores. Triton's interpreter knows no products of bf16, and gets fp32."""


@triton.jit
def _matmul(
    a,
    b,
    out,
    M,
    N,
    K,
    k_each,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    BY_TMA: tl.constexpr,
    OPERAND: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    first_row = tile // (GROUP * tiles_n) * GROUP
    group_rows = min(tiles_m - first_row, GROUP)
    in_group = tile % (GROUP * tiles_n)
    top = (first_row + in_group % group_rows) * BLOCK_M
    left = in_group // group_rows * BLOCK_N
    row, col = top + tl.arange(0, BLOCK_M), left + tl.arange(0, BLOCK_N)

    split = tl.program_id(1)
    first, last = split * k_each, min((split + 1) * k_each, K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if BY_TMA:  # what is outside is 0
        for start in range(first, last, BLOCK_K):
            a_tile, b_tile = a.load([top, start]), b.load([start, left])
            total = tl.dot(a_tile.to(OPERAND), b_tile.to(OPERAND), total)
    else:
        # Offsets within a tile fit 32 bits: they take half the registers of pointers.
        k = tl.arange(0, BLOCK_K)
        a += top.to(tl.int64) * K + first
        b += first.to(tl.int64) * N + left
        a_at = tl.arange(0, BLOCK_M)[:, None] * K + k[None, :]
        b_at = k[:, None] * N + tl.arange(0, BLOCK_N)[None, :]
        for start in range(first, last, BLOCK_K):
            in_k = k < last - start
            a_tile = tl.load(a + a_at, mask=(row < M)[:, None] & in_k[None, :], other=0.0)
            b_tile = tl.load(b + b_at, mask=in_k[:, None] & (col < N)[None, :], other=0.0)
            total = tl.dot(a_tile.to(OPERAND), b_tile.to(OPERAND), total)
            a += BLOCK_K
            b += BLOCK_K * N

    at = (split * M + row[:, None]).to(tl.int64) * N + col[None, :]
    inside = (row[:, None] < M) & (col[None, :] < N)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_up(parts, out, elements, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * elements + at, mask=at < elements, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < elements)


def _tile(M, N, is_cpu, by_tma):
    """Rows and columns of a tile, depth of a step, warps, and stages."""
    if is_cpu:  # the interpreter pays per program
        return max(16, triton.next_power_of_2(M)), max(16, triton.next_power_of_2(N)), 64, 4, 1
    if M <= 64:
        return max(16, triton.next_power_of_2(M)), 128, 64, 4, 4
    if N <= 64:
        return 128, max(16, triton.next_power_of_2(N)), 64, 8, 4
    # Without TMA the elements on their way take registers too, and 128x256 would spill.
    if by_tma and triton.cdiv(M, 128) * triton.cdiv(N, 256) >= SMS // 2:
        return 128, 256, 64, 8, 4
    return 128, 128, 64, 8, 4


def matmul(a, b, out):
    (M, K), N = a.shape, b.shape[1]
    is_cpu = a.device.type == "cpu"
    by_tma = not is_cpu and K % 8 == 0 and N % 8 == 0
    block_m, block_n, block_k, warps, stages = _tile(M, N, is_cpu, by_tma)
    tiles = triton.cdiv(M, block_m) * triton.cdiv(N, block_n)
    # On a CPU two splits of deep sums, to try them out.
    splits = 1 + (K > 256) if is_cpu else min(max(SMS // tiles, 1), MOST_SPLITS)
    k_each = triton.cdiv(triton.cdiv(K, splits), block_k) * block_k
    splits = triton.cdiv(K, k_each)
    if by_tma:
        a = TensorDescriptor(a, [M, K], [K, 1], [block_m, block_k])
        b = TensorDescriptor(b, [K, N], [N, 1], [block_k, block_n])
    target = out
    if splits > 1:
        target = torch.empty((splits, M, N), dtype=torch.float32, device=out.device)
    _matmul[(tiles, splits)](
        a,
        b,
        target,
        M,
        N,
        K,
        k_each,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=GROUP_ROWS,
        BY_TMA=by_tma,
        OPERAND=tl.float32 if is_cpu else OPERANDS[out.dtype],
        num_warps=warps,
        num_stages=stages,
    )
    if splits > 1:
        grid = (triton.cdiv(M * N, 1024),)
        _add_up[grid](target, out, M * N, SPLITS=splits, BLOCK=1024)
