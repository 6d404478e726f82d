"""Int4 matmul with zero points in Triton, tuned for Hopper by thought and not yet measured: three
kernels on one packing. One row: products on the ordinary cores, with k split so that about eight
small programs are on each SM, whose partial sums a second kernel adds. Up to 64 rows: tensor cores,
k split until the tiles fill the GPU. More: tensor cores on 128 rows, and no split.

A step is a group. The tensor cores multiply codes less their zero point, small whole numbers, and
the group's product is scaled in fp32: the scale meets 128 products at a time, and no weight.
"""

import torch
import triton
import triton.language as tl

GROUP = 128
SMS = 132
MOST_SPLITS = 32


@triton.jit
def _number(bits):
    # An fp16 number with these bits is 1024 + nibble: exact, and no conversion.
    return (bits.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)


@triton.jit
def _one_row(a, b, scales, zeros, out, N, K, groups_each, GROUP: tl.constexpr, BYTES: tl.constexpr):
    col = tl.program_id(0) * BYTES + tl.arange(0, BYTES)  # in bytes: pairs of columns
    inside = col < N // 2
    even = tl.zeros((BYTES,), dtype=tl.float32)
    odd = tl.zeros((BYTES,), dtype=tl.float32)
    first = tl.program_id(1) * groups_each
    for group in tl.range(first, min(first + groups_each, K // GROUP), num_stages=3):
        k = group * GROUP + tl.arange(0, GROUP)
        x = tl.load(a + k).to(tl.float32)[:, None]
        at = k[:, None].to(tl.int64) * (N // 2) + col[None, :]
        packed = tl.load(b + at, mask=inside[None, :], other=0, eviction_policy="evict_first")
        zero = tl.load(zeros + group * (N // 2) + col, mask=inside, other=0)
        low = (_number(packed & 0xF) - _number(zero & 0xF)[None, :]).to(tl.float32)
        high = (_number(packed >> 4) - _number(zero >> 4)[None, :]).to(tl.float32)
        scale_at = scales + group * N + 2 * col
        even += tl.sum(x * low, axis=0) * tl.load(scale_at, mask=inside, other=0.0)
        odd += tl.sum(x * high, axis=0) * tl.load(scale_at + 1, mask=inside, other=0.0)
    both = tl.interleave(even, odd)
    to = tl.program_id(0) * (2 * BYTES) + tl.arange(0, 2 * BYTES)
    at = tl.program_id(1).to(tl.int64) * N + to
    tl.store(out + at, both.to(out.dtype.element_ty), mask=to < N)


@triton.jit
def _rows(
    a,
    b,
    scales,
    zeros,
    out,
    M,
    N,
    K,
    groups_each,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BYTES: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    row_inside, col_inside = row[:, None] < M, col[None, :] < N // 2
    even = tl.zeros((ROWS, BYTES), dtype=tl.float32)
    odd = tl.zeros((ROWS, BYTES), dtype=tl.float32)
    first = tl.program_id(2) * groups_each
    for group in range(first, min(first + groups_each, K // GROUP)):
        k = group * GROUP + tl.arange(0, GROUP)
        a_tile = tl.load(a + row[:, None].to(tl.int64) * K + k[None, :], mask=row_inside, other=0.0)
        at = k[:, None].to(tl.int64) * (N // 2) + col[None, :]
        packed = tl.load(b + at, mask=col_inside, other=0)
        zero = tl.load(zeros + group * (N // 2) + col[None, :], mask=col_inside, other=0)
        scale_at = scales + group * N + 2 * col[None, :]
        even_scale = tl.load(scale_at, mask=col_inside, other=0.0).to(tl.float32)
        odd_scale = tl.load(scale_at + 1, mask=col_inside, other=0.0).to(tl.float32)
        even += tl.dot(a_tile, _number(packed & 0xF) - _number(zero & 0xF)) * even_scale
        odd += tl.dot(a_tile, _number(packed >> 4) - _number(zero >> 4)) * odd_scale
    both = tl.interleave(even, odd)
    to = tl.program_id(1) * (2 * BYTES) + tl.arange(0, 2 * BYTES)
    at = (tl.program_id(2) * M + row[:, None]).to(tl.int64) * N + to[None, :]
    tl.store(out + at, both.to(out.dtype.element_ty), mask=row_inside & (to[None, :] < N))


@triton.jit
def _add_up(parts, out, elements, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * elements + at, mask=at < elements, other=0.0)
    tl.store(out + at, total.to(tl.float16), mask=at < elements)


def _plan(M, N, groups, is_cpu):
    """Rows and bytes of a tile, programs that fill the GPU, and warps."""
    if is_cpu:  # the interpreter pays per program; two splits, to try them out
        rows, tile_bytes = max(16, triton.next_power_of_2(M)), triton.next_power_of_2(N // 2)
        return rows, max(16, tile_bytes), 2 if groups > 2 else 1, 4
    if M == 1:
        return 1, 64, 8 * SMS, 4
    if M <= 64:
        return max(16, triton.next_power_of_2(M)), 64, 2 * SMS, 4
    return 128, 64, 0, 8


def int4_matmul_zeros(a, b_packed, scales, zeros_packed, out):
    (M, K), N = a.shape, out.shape[1]
    groups = K // GROUP
    rows, tile_bytes, programs, warps = _plan(M, N, groups, a.device.type == "cpu")
    tiles = triton.cdiv(M, rows), triton.cdiv(N // 2, tile_bytes)
    splits = min(max(programs // (tiles[0] * tiles[1]), 1), MOST_SPLITS, groups)
    groups_each = triton.cdiv(groups, splits)
    splits = triton.cdiv(groups, groups_each)
    target = out
    if splits > 1:
        target = torch.empty((splits, M, N), dtype=torch.float32, device=a.device)
    inputs = a, b_packed, scales, zeros_packed, target
    options = {"GROUP": GROUP, "BYTES": tile_bytes, "num_warps": warps}
    if M == 1:
        _one_row[(tiles[1], splits)](*inputs, N, K, groups_each, **options)
    else:
        grid = (*tiles, splits)
        _rows[grid](*inputs, M, N, K, groups_each, ROWS=rows, num_stages=3, **options)
    if splits > 1:
        block = 1 << 16 if a.device.type == "cpu" else 512
        _add_up[(triton.cdiv(M * N, block),)](target, out, M * N, SPLITS=splits, BLOCK=block)
