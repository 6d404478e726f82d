"""Matmul in Triton: each SM takes one tile of 128x256 after another on two warpgroups, whose sums
fill the registers. Tiles of operands arrive by TMA in four stages of 48 KB of shared memory, and
results leave by it while the next tile is begun. Tiles run in groups of rows, so that those in
flight share `a` and `b` in the L2 cache. Operands whose rows are not aligned as TMA needs it are
copied to rows that are: loads by element took four times as long. Results whose rows are not are
stored by element from tiles of 128x192, of which 3000² has as many as fill the GPU almost three
times. Where tiles are few they are smaller, and k is split among programs, whose partial sums are
added in a fixed order.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SMS = 132
GROUP_ROWS = 8
"""Rows of tiles in a group: 132 tiles in flight then read about 8 + 17 tiles of operands a step."""
MOST_SPLITS = 16
WIDE = 128, 64
"""Columns of a wide tile, in two parts."""
ALIGNED = 8
"""Elements of 16 bytes, at which rows must begin."""
LINE = 64
"""Elements of a cache line. Copied rows begin at one: at any 16 bytes all took 12 % longer."""
OPERANDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
"""Of the tensor cores. Triton's interpreter knows no products of bf16, and gets fp32."""


@triton.jit
def _corner(
    tile, tiles_m, tiles_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr
):
    """First row and column of a tile, in the order of groups."""
    first_row = tile // (GROUP * tiles_n) * GROUP
    group_rows = min(tiles_m - first_row, GROUP)
    in_group = tile % (GROUP * tiles_n)
    return (first_row + in_group % group_rows) * BLOCK_M, in_group // group_rows * BLOCK_N


@triton.jit
def _sum(
    a,
    b,
    top,
    left,
    first,
    last,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """A tile of the product over k from `first` to `last`. What is outside of a matrix is 0."""
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(first, last, BLOCK_K):
        a_tile, b_tile = a.load([top, start]), b.load([start, left])
        total = tl.dot(a_tile.to(OPERAND), b_tile.to(OPERAND), total)
    return total


@triton.jit
def _tiles_in_turn(
    a,
    b,
    out,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    OPERAND: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        top, left = _corner(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP)
        total = _sum(a, b, top, left, 0, K, BLOCK_M, BLOCK_N, BLOCK_K, OPERAND)
        # By halves, which need half of the shared memory.
        halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left_half, right_half = tl.split(halves)
        out.store([top, left], left_half.to(out.dtype))
        out.store([top, left + BLOCK_N // 2], right_half.to(out.dtype))


@triton.jit
def _one_tile(
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
    OPERAND: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    top, left = _corner(tl.program_id(0), tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP)
    split = tl.program_id(1)
    first, last = split * k_each, min((split + 1) * k_each, K)
    total = _sum(a, b, top, left, first, last, BLOCK_M, BLOCK_N, BLOCK_K, OPERAND)
    _store(out + split.to(tl.int64) * M * N, total, top, left, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def _wide_tile(
    a,
    b,
    b_rest,
    out,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    REST_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """A tile of BLOCK_N + REST_N columns, which need not be a power of two."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N + REST_N)
    top, left = _corner(tl.program_id(0), tiles_m, tiles_n, BLOCK_M, BLOCK_N + REST_N, GROUP)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    rest = tl.zeros((BLOCK_M, REST_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        a_tile = a.load([top, start]).to(OPERAND)
        total = tl.dot(a_tile, b.load([start, left]).to(OPERAND), total)
        rest = tl.dot(a_tile, b_rest.load([start, left + BLOCK_N]).to(OPERAND), rest)
    _store(out, total, top, left, M, N, BLOCK_M, BLOCK_N)
    _store(out, rest, top, left + BLOCK_N, M, N, BLOCK_M, REST_N)


@triton.jit
def _store(out, total, top, left, M, N, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col = top + tl.arange(0, ROWS), left + tl.arange(0, COLS)
    at = row[:, None].to(tl.int64) * N + col[None, :]
    inside = (row[:, None] < M) & (col[None, :] < N)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _copy_rows(a, b, a_to, b_to, a_rows, a_cols, b_cols, a_pitch, b_pitch, BLOCK: tl.constexpr):
    """The rows of `a`, then those of `b`, and zeros behind them, so that stores are of 16 bytes."""
    row = tl.program_id(0).to(tl.int64)
    x, to, cols, pitch = a, a_to, a_cols, a_pitch
    if row >= a_rows:
        row -= a_rows
        x, to, cols, pitch = b, b_to, b_cols, b_pitch
    to, pitch = tl.multiple_of(to, 16), tl.multiple_of(pitch, 16)
    for start in range(0, pitch, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
        tl.store(to + row * pitch + at, value, mask=at < pitch)


@triton.jit
def _add_up(parts, out, elements, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * elements + at, mask=at < elements, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < elements)


def _tile(M, N, is_cpu):
    """Rows and columns of a tile, depth of a step, warps, and stages."""
    if is_cpu:  # the interpreter pays per program
        return max(16, triton.next_power_of_2(M)), max(16, triton.next_power_of_2(N)), 64, 4, 1
    if M <= 64:
        return max(16, triton.next_power_of_2(M)), 128, 64, 4, 4
    if N <= 64:
        return 128, max(16, triton.next_power_of_2(N)), 64, 8, 4
    if triton.cdiv(M, 128) * triton.cdiv(N, 256) >= SMS // 2:
        return 128, 256, 64, 8, 4
    return 64, 128, 64, 4, 6


def _room(x):
    """A matrix itself, or room for a copy of one whose rows TMA cannot load."""
    rows, cols = x.shape
    return x.new_empty((rows, triton.cdiv(cols, LINE) * LINE)) if cols % ALIGNED else x


def _aligned(a, b):
    """Both matrices, with rows that TMA can load."""
    a_to, b_to = _room(a), _room(b)
    a_rows = 0 if a_to is a else a.shape[0]
    b_rows = 0 if b_to is b else b.shape[0]
    if a_rows + b_rows:
        sizes = a_rows, a.shape[1], b.shape[1], a_to.stride(0), b_to.stride(0)
        _copy_rows[(a_rows + b_rows,)](a, b, a_to, b_to, *sizes, BLOCK=4096, num_warps=8)
    return a_to[:, : a.shape[1]], b_to[:, : b.shape[1]]


def _boxes(x, block):
    """A matrix of which TMA moves blocks."""
    return TensorDescriptor(x, [*x.shape], [x.stride(0), 1], block)


def matmul(a, b, out):
    (M, K), N = a.shape, b.shape[1]
    is_cpu = a.device.type == "cpu"
    block_m, block_n, block_k, warps, stages = _tile(M, N, is_cpu)
    tiles = triton.cdiv(M, block_m) * triton.cdiv(N, block_n)
    # On a CPU two splits of deep sums, to try them out.
    splits = 1 + (K > 256) if is_cpu else min(max(SMS // tiles, 1), MOST_SPLITS)
    k_each = triton.cdiv(triton.cdiv(K, splits), block_k) * block_k
    splits = triton.cdiv(K, k_each)
    shape = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP": GROUP_ROWS}
    shape["OPERAND"] = tl.float32 if is_cpu else OPERANDS[out.dtype]
    a, b = _aligned(a, b)
    options = {"num_warps": warps, "num_stages": stages}
    if block_n == 256 and splits == 1 and N % ALIGNED and not is_cpu:
        first, rest = WIDE
        shape |= {"BLOCK_N": first, "REST_N": rest}
        b_boxes = _boxes(b, [block_k, first]), _boxes(b, [block_k, rest])
        grid = (triton.cdiv(M, block_m) * triton.cdiv(N, first + rest),)
        _wide_tile[grid](_boxes(a, [block_m, block_k]), *b_boxes, out, M, N, K, **shape, **options)
        return
    a_boxes, b_boxes = _boxes(a, [block_m, block_k]), _boxes(b, [block_k, block_n])
    if block_n == 256 and splits == 1 and N % ALIGNED == 0:
        out_boxes = _boxes(out, [block_m, block_n // 2])
        grid = (min(tiles, SMS),)
        _tiles_in_turn[grid](a_boxes, b_boxes, out_boxes, M, N, K, **shape, **options)
        return
    target = out
    if splits > 1:
        target = torch.empty((splits, M, N), dtype=torch.float32, device=out.device)
    _one_tile[(tiles, splits)](a_boxes, b_boxes, target, M, N, K, k_each, **shape, **options)
    if splits > 1:
        grid = (triton.cdiv(M * N, 128),)
        _add_up[grid](target, out, M * N, SPLITS=splits, BLOCK=128, num_warps=1)
