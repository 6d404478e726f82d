"""Fp8 matmul in Triton, tuned for Hopper: a step of 128 k is one
block of scales. Its product on the tensor cores starts at zero; scaled, it is added in fp32. Tiles
are 128x128 on two warpgroups, which leaves registers for both sets of sums, with four stages of
32 KB, and run in groups of rows that share operands in the L2 cache. Within a tile's 128 columns
`b` has one scale, which is multiplied into those of the rows. Where tiles are few, blocks of k are
split among programs, whose partial sums are added in a fixed order.
"""

import torch
import triton
import triton.language as tl

BLOCK = 128
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
    blocks_each,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    blocks = K // BLOCK
    tile = tl.program_id(0)
    first_row = tile // (GROUP * tiles_n) * GROUP
    group_rows = min(tiles_m - first_row, GROUP)
    in_group = tile % (GROUP * tiles_n)
    row = (first_row + in_group % group_rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    first_col = in_group // group_rows * BLOCK_N
    col = first_col + tl.arange(0, BLOCK_N)
    # Rows outside read the first ones, and are not stored: no mask in the loop.
    read_row = tl.where(row < M, row, 0).to(tl.int64)
    read_col = tl.where(col < N, col, 0).to(tl.int64)
    ks = tl.arange(0, BLOCK)
    a_at = a + read_row[:, None] * K + ks[None, :]
    b_at = b + read_col[None, :] * K + ks[:, None]
    a_scale_at = a_scales + read_row * blocks
    b_scale_at = b_scales + first_col // BLOCK * blocks

    split = tl.program_id(1)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range(split * blocks_each, min((split + 1) * blocks_each, blocks)):
        product = tl.dot(tl.load(a_at + block * BLOCK), tl.load(b_at + block * BLOCK))
        scale = tl.load(a_scale_at + block) * tl.load(b_scale_at + block)
        total += product * scale[:, None]

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


def fp8_matmul(a, a_scales, b, b_scales, out):
    (M, K), N = a.shape, len(b)
    is_cpu = a.device.type == "cpu"  # its interpreter pays per program
    rows = max(16, triton.next_power_of_2(M))
    block_m = rows if is_cpu else min(rows, 128)
    warps, stages = (8, 4) if block_m == 128 else (4, 5)
    tiles = triton.cdiv(M, block_m) * triton.cdiv(N, BLOCK)
    blocks = K // BLOCK
    # On a CPU two splits of deep sums, to try them out.
    splits = min(2, blocks) if is_cpu else min(max(SMS // tiles, 1), MOST_SPLITS, blocks)
    blocks_each = triton.cdiv(blocks, splits)
    splits = triton.cdiv(blocks, blocks_each)
    target = out
    if splits > 1:
        target = torch.empty((splits, M, N), dtype=torch.float32, device=a.device)
    _matmul[(tiles, splits)](
        a,
        a_scales,
        b,
        b_scales,
        target,
        M,
        N,
        K,
        blocks_each,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK,
        BLOCK=BLOCK,
        GROUP=GROUP_ROWS,
        num_warps=warps,
        num_stages=stages,
    )
    if splits > 1:
        block = 1 << 16 if is_cpu else 1024
        grid = (triton.cdiv(M * N, block),)
        _add_up[grid](target, out, M * N, SPLITS=splits, BLOCK=block)
