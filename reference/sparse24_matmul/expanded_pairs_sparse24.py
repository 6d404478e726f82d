"""Matmul with 2:4 sparse weights in Triton, tuned for Hopper by thought and not yet measured.

Triton has no sparse tensor cores, so this kernel saves bytes, which are the limit for few rows. The
setup keeps two values of four and a nibble for their places, 4.5 bytes instead of 8. A program
turns a tile of groups into four tiles in registers, the weights at each of the four places, and
multiplies each by every fourth activation. k is split among programs until they fill the GPU.
From `MOST_ROWS` rows on arithmetic is the limit, and a dense product with 128x256 tiles is faster.
"""

import torch
import triton
import triton.language as tl

SMS = 132
MOST_ROWS = 64
MOST_SPLITS = 16
GROUP_ROWS = 8
STEP_GROUPS = 32
"""Groups of four of k in a step: 32 is the depth of two tensor core instructions."""


def sparse24_matmul_setup(w):
    """Dense weights, values [n, groups, 2] and places [n, groups // 2], padded to whole steps.

    A nibble has the place of the first value in its low two bits; a byte has two groups, the even
    one in the low nibble.
    """
    padded = torch.nn.functional.pad(w, (0, -w.shape[1] % (4 * STEP_GROUPS))).unflatten(1, (-1, 4))
    places = (padded != 0).float().topk(2, dim=2).indices.sort(dim=2).values
    values = padded.gather(2, places).contiguous()
    nibbles = (places[:, :, 0] | places[:, :, 1] << 2).to(torch.uint8)
    return w, values, (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).contiguous()


@triton.jit
def _at_place(first, second, nibble, PLACE: tl.constexpr):
    """The weight of each group that lies at a place, or zero."""
    of_second = tl.where((nibble >> 2) == PLACE, second, 0.0)
    return tl.where((nibble & 3) == PLACE, first, of_second)


@triton.jit
def _sparse(
    x,
    values,
    places,
    out,
    M,
    N,
    K,
    groups,
    groups_each,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STEP: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)[:, None]
    read_col = tl.where(col < N, col, 0).to(tl.int64)
    x_row = x + tl.where(row < M, row, 0).to(tl.int64) * K
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    first_group = tl.program_id(2) * groups_each
    for start in range(first_group, min(first_group + groups_each, groups), STEP):
        pair = 2 * start + tl.arange(0, 2 * STEP)[None, :]
        both = tl.load(values + read_col * (2 * groups) + pair)
        first, second = tl.split(tl.reshape(both, (COLS, STEP, 2)))
        byte = start // 2 + tl.arange(0, STEP // 2)[None, :]
        packed = tl.load(places + read_col * (groups // 2) + byte).to(tl.int32)
        nibble = tl.interleave(packed & 0xF, packed >> 4)

        k = 4 * start + tl.arange(0, 4 * STEP)[None, :]
        tile = tl.load(x_row + k, mask=k < K, other=0.0)
        low, high = tl.split(tl.permute(tl.reshape(tile, (ROWS, STEP, 2, 2)), (0, 1, 3, 2)))
        x0, x1 = tl.split(low)
        x2, x3 = tl.split(high)
        total = tl.dot(x0, tl.trans(_at_place(first, second, nibble, 0)), total)
        total = tl.dot(x1, tl.trans(_at_place(first, second, nibble, 1)), total)
        total = tl.dot(x2, tl.trans(_at_place(first, second, nibble, 2)), total)
        total = tl.dot(x3, tl.trans(_at_place(first, second, nibble, 3)), total)

    to = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    at = (tl.program_id(2) * M + row).to(tl.int64) * N + to
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(row < M) & (to < N))


@triton.jit
def _dense(
    x,
    w,
    out,
    M,
    N,
    K,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    WHOLE_K: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, ROWS), tl.cdiv(N, COLS)
    tile = tl.program_id(0)
    first_row = tile // (GROUP * tiles_n) * GROUP
    group_rows = min(tiles_m - first_row, GROUP)
    in_group = tile % (GROUP * tiles_n)
    row = (first_row + in_group % group_rows) * ROWS + tl.arange(0, ROWS)
    col = in_group // group_rows * COLS + tl.arange(0, COLS)
    # Rows outside read the first ones, and are not stored: no mask in the loop.
    x_at = x + tl.where(row < M, row, 0).to(tl.int64)[:, None] * K
    w_at = w + tl.where(col < N, col, 0).to(tl.int64)[None, :] * K
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        if WHOLE_K:
            x_tile, w_tile = tl.load(x_at + k[None, :]), tl.load(w_at + k[:, None])
        else:
            x_tile = tl.load(x_at + k[None, :], mask=k[None, :] < K, other=0.0)
            w_tile = tl.load(w_at + k[:, None], mask=k[:, None] < K, other=0.0)
        total = tl.dot(x_tile, w_tile, total)
    at = row[:, None].to(tl.int64) * N + col[None, :]
    inside = (row[:, None] < M) & (col[None, :] < N)
    tl.store(out + at, total.to(tl.float16), mask=inside)


@triton.jit
def _add_up(parts, out, elements, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * elements + at, mask=at < elements, other=0.0)
    tl.store(out + at, total.to(tl.float16), mask=at < elements)


def sparse24_matmul(x, prepared, out):
    w, values, places = prepared
    (M, K), N = x.shape, len(w)
    is_cpu = x.device.type == "cpu"  # its interpreter pays per program
    rows, cols = (max(16, triton.next_power_of_2(size)) for size in (M, N))
    few = 32 if is_cpu else MOST_ROWS  # on a CPU, tests take both ways
    if len(x) > few:
        if not is_cpu:
            rows, cols = 128, 256 if N > 128 else 128
        grid = (triton.cdiv(M, rows) * triton.cdiv(N, cols),)
        sizes = {"ROWS": rows, "COLS": cols, "STEP": 64, "GROUP": GROUP_ROWS}
        _dense[grid](x, w, out, M, N, K, **sizes, WHOLE_K=K % 64 == 0, num_warps=8, num_stages=4)
        return
    groups = values.shape[1]
    steps = groups // STEP_GROUPS
    cols = cols if is_cpu else 64
    tiles = triton.cdiv(M, rows), triton.cdiv(N, cols)
    splits = min(2 if is_cpu else max(2 * SMS // (tiles[0] * tiles[1]), 1), MOST_SPLITS, steps)
    groups_each = triton.cdiv(steps, splits) * STEP_GROUPS
    splits = triton.cdiv(groups, groups_each)
    target = out
    if splits > 1:
        target = torch.empty((splits, M, N), dtype=torch.float32, device=x.device)
    sizes = {"ROWS": rows, "COLS": cols, "STEP": STEP_GROUPS}
    arguments = x, values, places, target, M, N, K, groups, groups_each
    _sparse[(*tiles, splits)](*arguments, **sizes, num_warps=4, num_stages=4)
    if splits > 1:
        block = 1 << 16 if is_cpu else 512
        _add_up[(triton.cdiv(M * N, block),)](target, out, M * N, SPLITS=splits, BLOCK=block)
