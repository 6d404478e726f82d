"""Grouped matmul in Triton: a grid of experts, columns, and as many tiles of rows as a group may
have. Most programs find that their group has no such tile, and end."""

import torch
import triton
import triton.language as tl


@triton.jit
def _tiles(
    x,
    w,
    ends,
    out,
    N,
    K,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STEP: tl.constexpr,
    OPERAND: tl.constexpr,
):
    expert = tl.program_id(0)
    first = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    row = first + tl.program_id(2) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    if first + tl.program_id(2) * ROWS < end:
        inside = (row < end) & (col < N)
        total = tl.zeros((ROWS, COLS), dtype=tl.float32)
        for start in range(0, K, STEP):
            across, down = start + tl.arange(0, STEP)[None, :], start + tl.arange(0, STEP)[:, None]
            x_at = x + row.to(tl.int64) * K + across
            w_at = w + (expert.to(tl.int64) * K + down) * N + col
            x_tile = tl.load(x_at, mask=(row < end) & (across < K), other=0.0)
            w_tile = tl.load(w_at, mask=(down < K) & (col < N), other=0.0)
            total = tl.dot(x_tile.to(OPERAND), w_tile.to(OPERAND), total)
        at = row.to(tl.int64) * N + col
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def grouped_matmul(x, w, sizes, out):
    (tokens, K), (experts, _, N) = x.shape, w.shape
    rows, cols = 64, 64
    operand = tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16
    if x.device.type == "cpu":  # the interpreter pays per program, and knows no products of bf16
        rows, cols = (max(16, triton.next_power_of_2(size)) for size in (tokens, N))
        operand = tl.float32
    ends = sizes.cumsum(0, dtype=torch.int32)
    grid = (experts, triton.cdiv(N, cols), triton.cdiv(tokens, rows))
    _tiles[grid](x, w, ends, out, N, K, ROWS=rows, COLS=cols, STEP=64, OPERAND=operand)
