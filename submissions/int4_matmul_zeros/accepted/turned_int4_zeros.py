"""Int4 matmul with zero points in Triton, turned: tensor cores take the weights as their first
operand, which may lie in registers, so that none passes through shared memory after it was
dequantised. K is split until the tiles fill the GPU, and a second kernel adds the shares.
"""

import torch
import triton
import triton.language as tl

GROUP = 128
SMS = 132
MOST_ROWS = 128
TILE_BYTES, STEP, WARPS, STAGES = 64, 64, 4, 4
"""Bytes of a tile, which are pairs of columns, and depth of a step."""
BLOCKS_OF_SM = 2
"""So that one dequantises while the other multiplies."""


@triton.jit
def _number(bits):
    # An fp16 number with these bits is 1024 + nibble: exact, and no conversion.
    return (bits.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)


@triton.jit
def _scale(bits):
    return bits.to(tl.uint16).to(tl.float16, bitcast=True)


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
    k_each,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    BYTES: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    row_inside, col_inside = row[None, :] < M, col[:, None] < N // 2
    even = tl.zeros((BYTES, ROWS), dtype=tl.float32)
    odd = tl.zeros((BYTES, ROWS), dtype=tl.float32)
    first = tl.program_id(2) * k_each
    for start in range(first, min(first + k_each, K), STEP):
        k = start + tl.arange(0, STEP)
        a_tile = tl.load(a + row[None, :].to(tl.int64) * K + k[:, None], mask=row_inside, other=0.0)
        at = k[None, :].to(tl.int64) * (N // 2) + col[:, None]
        packed = tl.load(b + at, mask=col_inside, other=0)
        of_group = start // GROUP * (N // 2) + col[:, None]
        zero = tl.load(zeros + of_group, mask=col_inside, other=0)
        pair = tl.load(scales + of_group, mask=col_inside, other=0)
        low = (_number(packed & 0xF) - _number(zero & 0xF)) * _scale(pair & 0xFFFF)
        high = (_number(packed >> 4) - _number(zero >> 4)) * _scale(pair >> 16)
        even = tl.dot(low, a_tile, even)
        odd = tl.dot(high, a_tile, odd)
    both = tl.interleave(tl.trans(even), tl.trans(odd))
    down = (tl.program_id(2) * M + row)[:, None]
    to = tl.program_id(1) * (2 * BYTES) + tl.arange(0, 2 * BYTES)[None, :]
    at = down.to(tl.int64) * N + to
    tl.store(out + at, both.to(out.dtype.element_ty), mask=(row < M)[:, None] & (to < N))


@triton.jit
def _add_up(parts, out, elements, splits, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in range(splits):
        total += tl.load(parts + split * elements + at, mask=at < elements, other=0.0)
    tl.store(out + at, total.to(tl.float16), mask=at < elements)


def int4_matmul_zeros(a, b_packed, scales, zeros_packed, out):
    (M, K), N = a.shape, out.shape[1]
    is_cpu = a.device.type == "cpu"
    rows = min(max(16, triton.next_power_of_2(M)), MOST_ROWS)
    width = max(64, triton.next_power_of_2(N // 2)) if is_cpu else TILE_BYTES
    tiles = triton.cdiv(M, rows), triton.cdiv(N // 2, width)
    groups = K // GROUP
    # The interpreter pays per program: two splits, to try them out.
    shares = 2 if is_cpu else BLOCKS_OF_SM * SMS // (tiles[0] * tiles[1])
    groups_each = triton.cdiv(groups, min(max(shares, 1), groups))
    splits = triton.cdiv(groups, groups_each)
    target = out
    if splits > 1:
        target = torch.empty((splits, M, N), dtype=torch.float32, device=a.device)
    pairs = scales.view(torch.int32)  # of the two columns of a byte
    _tile[(*tiles, splits)](
        a,
        b_packed,
        pairs,
        zeros_packed,
        target,
        M,
        N,
        K,
        groups_each * GROUP,
        GROUP=GROUP,
        STEP=GROUP if is_cpu else STEP,
        ROWS=rows,
        BYTES=width,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    if splits > 1:
        block = 1 << 16 if is_cpu else 512
        grid = (triton.cdiv(M * N, block),)
        _add_up[grid](target, out, M * N, splits, BLOCK=block)
