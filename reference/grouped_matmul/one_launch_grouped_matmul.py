"""Grouped matmul in Triton, tuned for Hopper by thought and not yet measured: one launch, in which
each program adds up the sizes of the groups to find its tile. The grid has room for the worst case,
a partly empty tile for each expert; programs beyond the last tile end at once. Tiles of rows of one
expert run beside each other, so that its matrix is read from memory once. A tile has about as many
rows as a group on average: 16 where every expert has a few, so that memory stays the limit.
"""

import torch
import triton
import triton.language as tl

OPERANDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
"""Of the tensor cores. Triton's interpreter knows no products of bf16, and gets fp32."""


@triton.jit
def _tiles(
    x,
    w,
    sizes,
    out,
    experts,
    N,
    K,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STEP: tl.constexpr,
    WHOLE_K: tl.constexpr,
    OPERAND: tl.constexpr,
):
    number = tl.arange(0, EXPERTS)
    size = tl.load(sizes + number, mask=number < experts, other=0)
    tiles = (size + ROWS - 1) // ROWS
    tile = tl.program_id(0)
    # The first expert whose tiles end after this one.
    expert = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
    if expert < experts:
        before = number < expert
        in_group = (tile - tl.sum(tl.where(before, tiles, 0), 0)) * ROWS
        first = tl.sum(tl.where(before, size, 0), 0)
        end = first + tl.sum(tl.where(number == expert, size, 0), 0)

        row = first + in_group + tl.arange(0, ROWS)
        col = tl.program_id(1) * COLS + tl.arange(0, COLS)
        # Rows and columns outside read others, and are not stored: no mask in the loop.
        x_at = x + tl.where(row < end, row, first).to(tl.int64)[:, None] * K
        w_at = w + expert.to(tl.int64) * K * N + tl.where(col < N, col, 0)[None, :]
        total = tl.zeros((ROWS, COLS), dtype=tl.float32)
        for start in range(0, K, STEP):
            k = start + tl.arange(0, STEP)
            if WHOLE_K:
                x_tile = tl.load(x_at + k[None, :])
                w_tile = tl.load(w_at + k[:, None].to(tl.int64) * N)
            else:
                x_tile = tl.load(x_at + k[None, :], mask=k[None, :] < K, other=0.0)
                w_tile = tl.load(w_at + k[:, None].to(tl.int64) * N, mask=k[:, None] < K, other=0.0)
            total = tl.dot(x_tile.to(OPERAND), w_tile.to(OPERAND), total)
        at = row[:, None].to(tl.int64) * N + col[None, :]
        inside = (row[:, None] < end) & (col[None, :] < N)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def _tile(tokens, experts, N, is_cpu):
    """Rows and columns of a tile, depth of a step, warps, and stages."""
    if is_cpu:  # the interpreter pays per program
        return 64, max(16, triton.next_power_of_2(N)), 64, 4, 1
    each = tokens / experts
    if each <= 24:
        return 16, 128, 128, 4, 4
    if each <= 96:
        return 64, 128, 64, 4, 4
    return (128, 256, 64, 8, 4) if N > 128 else (128, 128, 64, 8, 4)


def grouped_matmul(x, w, sizes, out):
    (tokens, K), (experts, _, N) = x.shape, w.shape
    is_cpu = x.device.type == "cpu"
    rows, cols, step, warps, stages = _tile(tokens, experts, N, is_cpu)
    # A partly empty tile for each expert that has tokens; the rest of the tiles are full.
    most = tokens // rows + min(experts, tokens)
    _tiles[(most, triton.cdiv(N, cols))](
        x,
        w,
        sizes,
        out,
        experts,
        N,
        K,
        EXPERTS=triton.next_power_of_2(experts),
        ROWS=rows,
        COLS=cols,
        STEP=step,
        WHOLE_K=K % step == 0,
        OPERAND=tl.float32 if is_cpu else OPERANDS[x.dtype],
        num_warps=warps,
        num_stages=stages,
    )
