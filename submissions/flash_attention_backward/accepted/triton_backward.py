"""The backward pass in Triton, without atomic additions: one kernel holds a tile of keys and goes
over the queries of its group, another holds a tile of queries and goes over the keys. Both compute
the weights again. The sums of `out` and `dout` come from a kernel of their own."""

import math

import torch
import triton
import triton.language as tl

DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def _delta(out, dout, delta, rows, DIM: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * DIM + tl.arange(0, DIM)[None, :]
    inside = row[:, None] < rows
    products = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    products *= tl.load(dout + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta + row, tl.sum(products, axis=1), mask=row < rows)


@triton.jit
def _weights(q_tile, k_tile, sums, rows, keys, length, scale, CAUSAL: tl.constexpr):
    """Weights [queries, keys], 0 where no pair is."""
    seen = (rows[:, None] < length) & (keys[None, :] < length)
    if CAUSAL:
        seen &= keys[None, :] <= rows[:, None]
    exponents = tl.dot(q_tile, tl.trans(k_tile)) * (scale * LOG2_E) - sums[:, None] * LOG2_E
    return tl.exp2(tl.where(seen, exponents, float("-inf")))


@triton.jit
def _of_keys(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    dk,
    dv,
    group,
    length,
    scale,
    CAUSAL: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    kv_head = tl.program_id(1).to(tl.int64)  # of all sequences
    keys = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    dims = tl.arange(0, DIM)
    k_at = (kv_head * length + keys)[:, None] * DIM + dims[None, :]
    k_inside = keys[:, None] < length
    k_tile = tl.load(k + k_at, mask=k_inside, other=0.0).to(OPERAND)
    v_tile = tl.load(v + k_at, mask=k_inside, other=0.0).to(OPERAND)
    dk_sum = tl.zeros((KEYS, DIM), dtype=tl.float32)
    dv_sum = tl.zeros((KEYS, DIM), dtype=tl.float32)
    first = 0
    if CAUSAL:  # queries before the tile see none of it
        first = tl.program_id(0) * KEYS // ROWS * ROWS
    for head in range(kv_head * group, (kv_head + 1) * group):
        for start in range(first, length, ROWS):
            rows = start + tl.arange(0, ROWS)
            inside = rows < length
            at = (head * length + rows)[:, None] * DIM + dims[None, :]
            q_tile = tl.load(q + at, mask=inside[:, None], other=0.0)
            dout_tile = tl.load(dout + at, mask=inside[:, None], other=0.0).to(OPERAND)
            sums = tl.load(lse + head * length + rows, mask=inside, other=0.0)
            deltas = tl.load(delta + head * length + rows, mask=inside, other=0.0)
            given = q_tile.dtype
            q_tile = q_tile.to(OPERAND)
            weights = _weights(q_tile, k_tile, sums, rows, keys, length, scale, CAUSAL)
            dscores = weights * (tl.dot(dout_tile, tl.trans(v_tile)) - deltas[:, None])
            dv_sum += tl.dot(tl.trans(weights.to(given).to(OPERAND)), dout_tile)
            dk_sum += tl.dot(tl.trans(dscores.to(given).to(OPERAND)), q_tile)
    tl.store(dk + k_at, (dk_sum * scale).to(dk.dtype.element_ty), mask=k_inside)
    tl.store(dv + k_at, dv_sum.to(dv.dtype.element_ty), mask=k_inside)


@triton.jit
def _of_queries(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    dq,
    group,
    length,
    scale,
    CAUSAL: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)  # of all sequences, whose heads are whole groups
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    inside = rows < length
    at = (head * length + rows)[:, None] * DIM + dims[None, :]
    q_tile = tl.load(q + at, mask=inside[:, None], other=0.0).to(OPERAND)
    dout_tile = tl.load(dout + at, mask=inside[:, None], other=0.0).to(OPERAND)
    sums = tl.load(lse + head * length + rows, mask=inside, other=0.0)
    deltas = tl.load(delta + head * length + rows, mask=inside, other=0.0)
    dq_sum = tl.zeros((ROWS, DIM), dtype=tl.float32)
    end = length
    if CAUSAL:
        end = tl.minimum(length, (tl.program_id(0) + 1) * ROWS)
    for start in range(0, end, KEYS):
        keys = start + tl.arange(0, KEYS)
        k_at = (head // group * length + keys)[:, None] * DIM + dims[None, :]
        k_tile = tl.load(k + k_at, mask=keys[:, None] < length, other=0.0)
        v_tile = tl.load(v + k_at, mask=keys[:, None] < length, other=0.0).to(OPERAND)
        given = k_tile.dtype
        k_tile = k_tile.to(OPERAND)
        weights = _weights(q_tile, k_tile, sums, rows, keys, length, scale, CAUSAL)
        dscores = weights * (tl.dot(dout_tile, tl.trans(v_tile)) - deltas[:, None])
        dq_sum += tl.dot(dscores.to(given).to(OPERAND), k_tile)
    tl.store(dq + at, (dq_sum * scale).to(dq.dtype.element_ty), mask=inside[:, None])


def flash_attention_backward(q, k, v, out, dout, lse, dq, dk, dv, causal, scale):
    batch, heads, length, dim = q.shape
    kv_heads = k.shape[1]
    operand, tile = DTYPES[q.dtype], 64
    if q.device.type == "cpu":  # Triton's interpreter multiplies the bits of bf16 as integers
        operand, tile = tl.float32, 128  # and pays per program
    shapes = {"CAUSAL": causal, "DIM": dim, "ROWS": tile, "KEYS": tile, "OPERAND": operand}
    delta = torch.empty_like(lse)
    rows = batch * heads * length
    _delta[(triton.cdiv(rows, tile),)](out, dout, delta, rows, DIM=dim, BLOCK=tile)
    tiles, group = triton.cdiv(length, tile), heads // kv_heads
    _of_keys[(tiles, batch * kv_heads)](
        q, k, v, dout, lse, delta, dk, dv, group, length, scale, **shapes
    )
    _of_queries[(tiles, batch * heads)](
        q, k, v, dout, lse, delta, dq, group, length, scale, **shapes
    )
