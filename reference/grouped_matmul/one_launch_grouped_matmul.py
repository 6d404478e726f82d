"""Grouped matmul in Triton: one launch, in which each program adds up the sizes of the groups to
find its tile. The grid has room for the worst case, a partly empty tile for each expert; programs
beyond the last tile end at once. An expert's tiles follow each other, and those in flight share its
matrix and its tokens in the L2 cache. A tile has about as many rows as a group on average: 16 where
every expert has a few, so that memory stays the limit. Tiles come by TMA where the shapes allow it.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

STRIPS = 12
"""Tiles of rows in a block of tiles: with 132 tiles in flight, 12 x 11 read the fewest operands."""
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
    STRIPS: tl.constexpr,
    BY_TMA: tl.constexpr,
    WHOLE_K: tl.constexpr,
    OPERAND: tl.constexpr,
):
    number = tl.arange(0, EXPERTS)
    size = tl.load(sizes + number, mask=number < experts, other=0)
    strips = (size + ROWS - 1) // ROWS
    columns = tl.cdiv(N, COLS)
    tile = tl.program_id(0)
    # The first expert whose tiles end after this one.
    expert = tl.sum((tl.cumsum(strips, 0) * columns <= tile).to(tl.int32), 0)
    if expert < experts:
        before = number < expert
        in_expert = tile - tl.sum(tl.where(before, strips, 0), 0) * columns
        first = tl.sum(tl.where(before, size, 0), 0)
        mine = tl.sum(tl.where(number == expert, size, 0), 0)

        # Blocks of tiles: STRIPS tiles of rows by all columns, down the rows first.
        top = in_expert // (STRIPS * columns) * STRIPS
        height = min(tl.cdiv(mine, ROWS) - top, STRIPS)
        in_block = in_expert % (STRIPS * columns)
        first_row = first + (top + in_block % height) * ROWS
        first_col = in_block // height * COLS

        row = first_row + tl.arange(0, ROWS)
        col = first_col + tl.arange(0, COLS)
        inside = row < first + mine
        total = tl.zeros((ROWS, COLS), dtype=tl.float32)
        if BY_TMA:
            # Rows of the next expert are multiplied too, and not stored.
            for start in range(0, K, STEP):
                x_tile = x.load([first_row, start])
                w_tile = w.load([expert * K + start, first_col])
                total = tl.dot(x_tile.to(OPERAND), w_tile.to(OPERAND), total)
        else:
            k = tl.arange(0, STEP)
            x_at = x + row.to(tl.int64)[:, None] * K + k[None, :]
            w_at = w + expert.to(tl.int64) * K * N + k[:, None] * N + col[None, :]
            for start in range(0, K, STEP):
                x_mask, w_mask = inside[:, None], col[None, :] < N
                if not WHOLE_K:
                    x_mask = x_mask & (k[None, :] < K - start)
                    w_mask = w_mask & (k[:, None] < K - start)
                x_tile = tl.load(x_at, mask=x_mask, other=0.0)
                w_tile = tl.load(w_at, mask=w_mask, other=0.0)
                total = tl.dot(x_tile.to(OPERAND), w_tile.to(OPERAND), total)
                x_at += STEP
                w_at += STEP * N
        at = row[:, None].to(tl.int64) * N + col[None, :]
        tl.store(
            out + at, total.to(out.dtype.element_ty), mask=inside[:, None] & (col < N)[None, :]
        )


def _tile(tokens, experts, N, is_cpu):
    """Rows and columns of a tile, depth of a step, warps, and stages."""
    if is_cpu:  # the interpreter pays per program
        return 64, max(16, triton.next_power_of_2(N)), 64, 4, 1
    each = tokens / experts
    if each <= 24:
        return 16, 128, 64, 4, 5
    if each <= 96:
        return 64, 128, 64, 4, 4
    # Two programs share an SM where tiles of 256 columns would be partly empty.
    return (128, 256, 64, 8, 4) if N % 256 == 0 or N > 4096 else (128, 128, 64, 8, 3)


def grouped_matmul(x, w, sizes, out):
    (tokens, K), (experts, _, N) = x.shape, w.shape
    is_cpu = x.device.type == "cpu"
    rows, cols, step, warps, stages = _tile(tokens, experts, N, is_cpu)
    # TMA takes rows of a multiple of 16 bytes, and a step may not end in the next expert's matrix.
    by_tma = not is_cpu and K % step == 0 and N % 8 == 0
    if by_tma:
        x = TensorDescriptor(x, [tokens, K], [K, 1], [rows, step])
        w = TensorDescriptor(w.view(-1, N), [experts * K, N], [N, 1], [step, cols])
    # A partly empty tile for each expert that has tokens; the rest of the tiles are full.
    most = tokens // rows + min(experts, tokens)
    _tiles[(most * triton.cdiv(N, cols),)](
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
        STRIPS=STRIPS,
        BY_TMA=by_tma,
        WHOLE_K=K % step == 0,
        OPERAND=tl.float32 if is_cpu else OPERANDS[out.dtype],
        num_warps=warps,
        num_stages=stages,
    )
