"""Int4 matmul with zero points in Triton: three ways on one packing. One row: products on the
ordinary cores, with k split so that all programs run at once. Up to 128 rows: tensor cores, with k
split until the tiles fill the GPU; they take the weights as their first operand, which may lie in
registers, so that none passes through shared memory after it was dequantised. More rows: a kernel
dequantises the weights to memory, once instead of for each tile of rows, and the library
multiplies.
"""

import torch
import triton
import triton.language as tl

GROUP = 128
SMS = 132
MOST_SPLITS = 32
MOST_FUSED_ROWS = 128


@triton.jit
def _number(bits):
    # An fp16 number with these bits is 1024 + nibble: exact, and no conversion.
    return (bits.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)


@triton.jit
def _scale(bits):
    return bits.to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def _one_row(
    a,
    b,
    scales,
    zeros,
    out,
    N,
    K,
    groups_each,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    BYTES: tl.constexpr,
):
    col = tl.program_id(0) * BYTES + tl.arange(0, BYTES)  # in bytes: pairs of columns
    inside = col < N // 2
    even = tl.zeros((STEP, BYTES), dtype=tl.float32)
    odd = tl.zeros((STEP, BYTES), dtype=tl.float32)
    first = tl.program_id(1) * groups_each
    for group in range(first, min(first + groups_each, K // GROUP)):
        zero = tl.load(zeros + group * (N // 2) + col, mask=inside, other=0)[None, :]
        pair = tl.load(scales + group * (N // 2) + col, mask=inside, other=0)[None, :]
        low_zero, high_zero = _number(zero & 0xF), _number(zero >> 4)
        low = tl.zeros((STEP, BYTES), dtype=tl.float32)
        high = tl.zeros((STEP, BYTES), dtype=tl.float32)
        for step in tl.static_range(GROUP // STEP):
            k = group * GROUP + step * STEP + tl.arange(0, STEP)[:, None]
            x = tl.load(a + k).to(tl.float32)
            at = k.to(tl.int64) * (N // 2) + col[None, :]
            packed = tl.load(b + at, mask=inside[None, :], other=0, eviction_policy="evict_first")
            low += x * (_number(packed & 0xF) - low_zero).to(tl.float32)
            high += x * (_number(packed >> 4) - high_zero).to(tl.float32)
        # The scale meets the sum of a thread's products, and threads are added up at the end.
        even += low * _scale(pair & 0xFFFF).to(tl.float32)
        odd += high * _scale(pair >> 16).to(tl.float32)
    both = tl.interleave(tl.sum(even, axis=0), tl.sum(odd, axis=0))
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
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    BYTES: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    row_inside, col_inside = row[None, :] < M, col[:, None] < N // 2
    even = tl.zeros((BYTES, ROWS), dtype=tl.float32)
    odd = tl.zeros((BYTES, ROWS), dtype=tl.float32)
    first = tl.program_id(2) * groups_each * GROUP
    for start in range(first, min(first + groups_each * GROUP, K), STEP):
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
def _add_up(parts, out, elements, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * elements + at, mask=at < elements, other=0.0)
    tl.store(out + at, total.to(tl.float16), mask=at < elements)


@triton.jit
def _dequantise(
    b,
    scales,
    zeros,
    weights,
    N,
    GROUP: tl.constexpr,
    STEP: tl.constexpr,
    BYTES: tl.constexpr,
):
    k = tl.program_id(0) * STEP + tl.arange(0, STEP)[:, None]
    col = tl.program_id(1) * BYTES + tl.arange(0, BYTES)[None, :]
    inside = col < N // 2
    packed = tl.load(b + k.to(tl.int64) * (N // 2) + col, mask=inside, other=0)
    of_group = tl.program_id(0) * STEP // GROUP * (N // 2) + col
    zero = tl.load(zeros + of_group, mask=inside, other=0)
    pair = tl.load(scales + of_group, mask=inside, other=0)
    low = (_number(packed & 0xF) - _number(zero & 0xF)) * _scale(pair & 0xFFFF)
    high = (_number(packed >> 4) - _number(zero >> 4)) * _scale(pair >> 16)
    to = tl.program_id(1) * (2 * BYTES) + tl.arange(0, 2 * BYTES)[None, :]
    tl.store(weights + k.to(tl.int64) * N + to, tl.interleave(low, high), mask=to < N)


def _plan(M, N, groups, is_cpu):
    """Rows and bytes of a tile, depth of a step, programs that fill the GPU, warps, and stages."""
    rows = 1 if M == 1 else max(16, triton.next_power_of_2(M))
    if is_cpu:  # the interpreter pays per program; two splits, to try them out
        return rows, max(64, triton.next_power_of_2(N // 2)), GROUP, 2 if groups > 2 else 1, 4, 1
    if M == 1:
        return rows, 64, 16, 6 * SMS, 4, 3
    if M <= 32:
        return rows, 64, GROUP, 4 * SMS, 4, 3
    return rows, 64, 64, 2 * SMS, 4, 3


def _by_library(a, b_packed, pairs, zeros_packed, out):
    K, N = a.shape[1], out.shape[1]
    weights = torch.empty((K, N), dtype=torch.float16, device=a.device)
    step, tile_bytes = 32, 64
    grid = K // step, triton.cdiv(N // 2, tile_bytes)
    _dequantise[grid](
        b_packed, pairs, zeros_packed, weights, N, GROUP=GROUP, STEP=step, BYTES=tile_bytes
    )
    torch.matmul(a, weights, out=out)


def int4_matmul_zeros(a, b_packed, scales, zeros_packed, out):
    (M, K), N = a.shape, out.shape[1]
    groups, is_cpu = K // GROUP, a.device.type == "cpu"
    pairs = scales.view(torch.int32)  # of the two columns of a byte
    if M > MOST_FUSED_ROWS:
        _by_library(a, b_packed, pairs, zeros_packed, out)
        return
    rows, tile_bytes, step, programs, warps, stages = _plan(M, N, groups, is_cpu)
    tiles = triton.cdiv(M, rows), triton.cdiv(N // 2, tile_bytes)
    splits = min(max(programs // (tiles[0] * tiles[1]), 1), MOST_SPLITS, groups)
    groups_each = triton.cdiv(groups, splits)
    splits = triton.cdiv(groups, groups_each)
    target = out
    if splits > 1:
        target = torch.empty((splits, M, N), dtype=torch.float32, device=a.device)
    inputs = a, b_packed, pairs, zeros_packed, target
    options = {"GROUP": GROUP, "STEP": step, "BYTES": tile_bytes}
    options |= {"num_warps": warps, "num_stages": stages}
    if M == 1:
        _one_row[(tiles[1], splits)](*inputs, N, K, groups_each, **options)
    else:
        grid = (*tiles, splits)
        _rows[grid](*inputs, M, N, K, groups_each, ROWS=rows, **options)
    if splits > 1:
        block = 1 << 16 if is_cpu else 512
        _add_up[(triton.cdiv(M * N, block),)](target, out, M * N, SPLITS=splits, BLOCK=block)
