"""Matmul with 2:4 sparse weights in Triton: the setup lists values and their columns; each program
gathers, for one row of activations, what meets the weights of some output columns."""

import torch
import triton
import triton.language as tl


def sparse24_matmul_setup(w):
    """Values fp16 and columns int16 of what is kept, [n, k // 2]."""
    groups = w.unflatten(1, (-1, 4))
    places = (groups != 0).float().topk(2, dim=2).indices
    values = groups.gather(2, places).flatten(1)
    starts = 4 * torch.arange(groups.shape[1], device=w.device)
    return values, (places + starts[:, None]).flatten(1).to(torch.int16)


@triton.jit
def _row(x, values, columns, out, N, K, kept, COLS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros((COLS,), dtype=tl.float32)
    for start in range(0, kept, STEP):
        step = start + tl.arange(0, STEP)[None, :]
        inside = (col[:, None] < N) & (step < kept)
        at = col[:, None].to(tl.int64) * kept + step
        weight = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
        column = tl.load(columns + at, mask=inside, other=0).to(tl.int32)
        total += tl.sum(weight * tl.load(x + row * K + column).to(tl.float32), axis=1)
    tl.store(out + row * N + col, total.to(tl.float16), mask=col < N)


def sparse24_matmul(x, prepared, out):
    values, columns = prepared
    (M, K), (N, kept) = x.shape, values.shape
    cols = triton.next_power_of_2(N) if x.device.type == "cpu" else 32
    grid = (triton.cdiv(N, cols), M)
    _row[grid](x, values, columns, out, N, K, kept, COLS=cols, STEP=128)
