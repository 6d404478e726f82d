"""Int8 matmul in Triton for Hopper: 128x256 tiles, 128 k a step, and three or four stages of 48 KB;
tiles run in groups of rows, which share operands in the L2 cache.
Where tiles are far fewer than SMs, k is split among programs. They add int32 sums atomically, which
is exact in any order, and a second kernel scales them. Zeroing the sums and that second launch cost
more than a quarter of the SMs that have nothing to do.
"""

import torch
import triton
import triton.language as tl

SMS = 132
GROUP_ROWS = 8
MOST_SPLITS = 16


@triton.jit
def _matmul(
    a,
    a_scales,
    b,
    b_scales,
    out,
    M,
    N,
    K,
    k_each,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    WHOLE_K: tl.constexpr,
    SPLIT: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    first_row = tile // (GROUP * tiles_n) * GROUP
    group_rows = min(tiles_m - first_row, GROUP)
    in_group = tile % (GROUP * tiles_n)
    row = (first_row + in_group % group_rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = in_group // group_rows * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows outside read the first ones, and are not stored: no mask in the loop.
    a_at = a + tl.where(row < M, row, 0).to(tl.int64)[:, None] * K
    b_at = b + tl.where(col < N, col, 0).to(tl.int64)[None, :] * K

    first = tl.program_id(1) * k_each
    last = min(first + k_each, K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for start in range(first, last, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        if WHOLE_K:
            a_tile, b_tile = tl.load(a_at + k[None, :]), tl.load(b_at + k[:, None])
        else:
            a_tile = tl.load(a_at + k[None, :], mask=k[None, :] < last, other=0)
            b_tile = tl.load(b_at + k[:, None], mask=k[:, None] < last, other=0)
        total = tl.dot(a_tile, b_tile, total, out_dtype=tl.int32)

    at = row[:, None].to(tl.int64) * N + col[None, :]
    inside = (row[:, None] < M) & (col[None, :] < N)
    if SPLIT:
        tl.atomic_add(out + at, total, mask=inside, sem="relaxed")
    else:
        row_scale = tl.load(a_scales + row, mask=row < M, other=0.0)
        col_scale = tl.load(b_scales + col, mask=col < N, other=0.0)
        result = total.to(tl.float32) * row_scale[:, None] * col_scale[None, :]
        tl.store(out + at, result.to(tl.float16), mask=inside)


@triton.jit
def _scale(sums, a_scales, b_scales, out, M, N, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < M * N
    total = tl.load(sums + at, mask=inside, other=0).to(tl.float32)
    row_scale = tl.load(a_scales + at // N, mask=inside, other=0.0)
    col_scale = tl.load(b_scales + at % N, mask=inside, other=0.0)
    tl.store(out + at, (total * row_scale * col_scale).to(tl.float16), mask=inside)


def _tile(M, N, is_cpu):
    """Rows and columns of a tile, depth of a step, warps, and stages."""
    if is_cpu:  # the interpreter pays per program
        return max(16, triton.next_power_of_2(M)), max(16, triton.next_power_of_2(N)), 128, 4, 1
    if M <= 64:  # a few columns, so that 8,192 make programs enough for all SMs
        return max(16, triton.next_power_of_2(M)), 32, 256, 4, 5 if M <= 32 else 4
    tiles = triton.cdiv(M, 128) * triton.cdiv(N, 256)
    if tiles >= SMS // 2 and N > 128:
        return 128, 256, 128, 8, 4 if tiles <= SMS else 3
    return 128, 128, 128, 8, 4


def _splits(tiles, K, is_cpu):
    """Programs that share the k of a tile."""
    if is_cpu:  # two for deep sums, to try them out
        return 1 + (K > 500)
    if 4 * tiles >= 3 * SMS:
        return 1
    return min(max(2 * SMS // tiles, 1), MOST_SPLITS)


def int8_dynamic_matmul(a, a_scales, b, b_scales, out):
    (M, K), N = a.shape, len(b)
    is_cpu = a.device.type == "cpu"
    block_m, block_n, block_k, warps, stages = _tile(M, N, is_cpu)
    tiles = triton.cdiv(M, block_m) * triton.cdiv(N, block_n)
    k_each = triton.cdiv(triton.cdiv(K, _splits(tiles, K, is_cpu)), block_k) * block_k
    splits = triton.cdiv(K, k_each)
    target = out
    if splits > 1:
        target = torch.zeros((M, N), dtype=torch.int32, device=a.device)
    _matmul[(tiles, splits)](
        a,
        a_scales,
        b,
        b_scales,
        target,
        M,
        N,
        K,
        k_each,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=GROUP_ROWS,
        WHOLE_K=K % block_k == 0,
        SPLIT=splits > 1,
        num_warps=warps,
        num_stages=stages,
    )
    if splits > 1:
        block = 1 << 16 if is_cpu else 1024
        _scale[(triton.cdiv(M * N, block),)](target, a_scales, b_scales, out, M, N, BLOCK=block)
