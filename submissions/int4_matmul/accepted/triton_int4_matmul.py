"""Int4 matmul in Triton: a tile's even and odd columns are two products over the same bytes.

The weights stay small exact integers up to the tensor cores; each group's product is scaled in
fp32. With few rows the groups are split among programs, whose partial sums are added in a fixed
order.
"""

import torch
import triton
import triton.language as tl

GROUP = 128
PROGRAMS = 264  # two per SM of an H100


@triton.jit
def _nibbles(bits):
    # An fp16 number with these bits is 1024 + nibble, so this is exact and needs no conversion.
    return (bits.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1032.0


@triton.jit
def _matmul(
    a,
    b_packed,
    scales,
    out,
    M,
    N,
    K,
    groups_each,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_BYTES + tl.arange(0, BLOCK_BYTES)  # in bytes: pairs of columns
    steps = tl.arange(0, GROUP)
    row_inside = rows[:, None] < M
    col_inside = cols[None, :] < N // 2
    even = tl.zeros((BLOCK_M, BLOCK_BYTES), dtype=tl.float32)
    odd = tl.zeros((BLOCK_M, BLOCK_BYTES), dtype=tl.float32)

    first = tl.program_id(2) * groups_each
    for group in range(first, min(first + groups_each, K // GROUP)):
        k = group * GROUP + steps
        a_at = rows[:, None].to(tl.int64) * K + k[None, :]
        a_tile = tl.load(a + a_at, mask=row_inside, other=0.0)
        bytes_at = k[:, None].to(tl.int64) * (N // 2) + cols[None, :]
        packed = tl.load(b_packed + bytes_at, mask=col_inside, other=0)
        scale_at = scales + group * N + 2 * cols[None, :]
        even_scale = tl.load(scale_at, mask=col_inside, other=0.0).to(tl.float32)
        odd_scale = tl.load(scale_at + 1, mask=col_inside, other=0.0).to(tl.float32)
        even += tl.dot(a_tile, _nibbles(packed & 0xF)) * even_scale
        odd += tl.dot(a_tile, _nibbles(packed >> 4)) * odd_scale

    both = tl.interleave(even, odd)
    columns = tl.program_id(1) * (2 * BLOCK_BYTES) + tl.arange(0, 2 * BLOCK_BYTES)
    at = (tl.program_id(2) * M + rows[:, None]).to(tl.int64) * N + columns[None, :]
    inside = row_inside & (columns[None, :] < N)
    tl.store(out + at, both.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum_parts(parts, out, elements, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in range(SPLITS):
        total += tl.load(parts + split * elements + at, mask=at < elements, other=0.0)
    tl.store(out + at, total.to(tl.float16), mask=at < elements)


def _tile(M, N, device):
    """Rows and bytes of a tile, and warps."""
    if device.type == "cpu":  # the interpreter pays per program
        return min(max(triton.next_power_of_2(M), 16), 256), 256, 4
    if M <= 16:
        return 16, 64 if N <= 8192 else 128, 4
    if M <= 32:
        return 32, 64, 4
    if M <= 64:
        return 64, 64, 4
    return 128, 64, 8


def int4_matmul(a, b_packed, scales, out):
    M, K = a.shape
    N = out.shape[1]
    groups = K // GROUP
    block_m, block_bytes, warps = _tile(M, N, a.device)
    tiles = triton.cdiv(M, block_m), triton.cdiv(N, 2 * block_bytes)
    splits = 1
    if M <= 64 and a.device.type != "cpu":
        splits = min(max(PROGRAMS // (tiles[0] * tiles[1]), 1), groups)
    groups_each = triton.cdiv(groups, splits)
    splits = triton.cdiv(groups, groups_each)

    target = out
    if splits > 1:
        target = torch.empty((splits, M, N), dtype=torch.float32, device=a.device)
    _matmul[(*tiles, splits)](
        a,
        b_packed,
        scales,
        target,
        M,
        N,
        K,
        groups_each,
        GROUP=GROUP,
        BLOCK_M=block_m,
        BLOCK_BYTES=block_bytes,
        num_warps=warps,
        num_stages=3,
    )
    if splits > 1:
        grid = (triton.cdiv(M * N, 512),)
        _sum_parts[grid](target, out, M * N, SPLITS=splits, BLOCK=512, num_warps=4)
