"""The backward pass of attention in Triton, without atomic additions. One kernel holds a tile of
keys and goes over the queries of its group; it computes scores with a row a key, so that weights
and gradients of scores are left factors of the products that follow, and need not be turned.
Another holds a tile of queries and goes over the keys. Only tiles on the diagonal are masked: what
lies behind the last query or key is loaded as zeros, and adds nothing.
"""

import math

import torch
import triton
import triton.language as tl

DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
LOG2_E = tl.constexpr(math.log2(math.e))
OF_KEYS = {
    64: {"KEYS": 128, "ROWS": 64, "num_warps": 8, "num_stages": 3},
    128: {"KEYS": 64, "ROWS": 64, "num_warps": 4, "num_stages": 2},
}
OF_QUERIES = {
    64: {"KEYS": 64, "ROWS": 128, "num_warps": 8, "num_stages": 3},
    128: {"KEYS": 64, "ROWS": 64, "num_warps": 4, "num_stages": 2},
}
"""Tiles by head_dim: registers hold two sums of KEYS × head_dim, or one of ROWS × head_dim."""


@triton.jit
def _delta(out, dout, lse, delta, lse2, rows, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """The sums of `out · dout`, and the logarithms to base 2."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * DIM + tl.arange(0, DIM)[None, :]
    inside = row[:, None] < rows
    products = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    products *= tl.load(dout + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta + row, tl.sum(products, axis=1), mask=row < rows)
    sums = tl.load(lse + row, mask=row < rows, other=0.0)
    tl.store(lse2 + row, sums * LOG2_E, mask=row < rows)


@triton.jit
def _add_rows(
    dk_sum,
    dv_sum,
    k_tile,
    v_tile,
    q,
    dout,
    lse2,
    delta,
    start,
    end,
    keys,
    length,
    scale2,
    MASKED: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """What the queries from `start` to `end` of one head add to the gradients of a tile of keys."""
    dims = tl.arange(0, DIM)
    for first in range(start, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = rows < length
        at = rows[:, None] * DIM + dims[None, :]
        q_tile = tl.load(q + at, mask=inside[:, None], other=0.0)
        given = q_tile.dtype
        q_tile = q_tile.to(OPERAND)
        sums = tl.load(lse2 + rows, mask=inside, other=0.0)
        weights = tl.exp2(tl.dot(k_tile, tl.trans(q_tile)) * scale2 - sums[None, :])
        if MASKED:
            weights = tl.where(keys[:, None] <= rows[None, :], weights, 0.0)
        dout_tile = tl.load(dout + at, mask=inside[:, None], other=0.0).to(OPERAND)
        dv_sum = tl.dot(weights.to(given).to(OPERAND), dout_tile, dv_sum)
        deltas = tl.load(delta + rows, mask=inside, other=0.0)
        dscores = weights * (tl.dot(v_tile, tl.trans(dout_tile)) - deltas[None, :])
        dk_sum = tl.dot(dscores.to(given).to(OPERAND), q_tile, dk_sum)
    return dk_sum, dv_sum


@triton.jit
def _of_keys(
    q,
    k,
    v,
    dout,
    lse2,
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
    tile = tl.program_id(0)  # under a causal mask the first ones have the most queries
    keys = tile * KEYS + tl.arange(0, KEYS)
    dims = tl.arange(0, DIM)
    k_at = kv_head * length * DIM + keys[:, None] * DIM + dims[None, :]
    k_inside = keys[:, None] < length
    k_tile = tl.load(k + k_at, mask=k_inside, other=0.0).to(OPERAND)
    v_tile = tl.load(v + k_at, mask=k_inside, other=0.0).to(OPERAND)
    dk_sum = tl.zeros((KEYS, DIM), dtype=tl.float32)
    dv_sum = tl.zeros((KEYS, DIM), dtype=tl.float32)
    for head in range(kv_head * group, (kv_head + 1) * group):
        rest = 0
        head_q, head_dout = q + head * length * DIM, dout + head * length * DIM
        head_lse2, head_delta = lse2 + head * length, delta + head * length
        if CAUSAL:  # queries before the tile see none of it, and those behind it see all
            rest = (tile + 1) * KEYS
            dk_sum, dv_sum = _add_rows(
                dk_sum, dv_sum, k_tile, v_tile, head_q, head_dout, head_lse2, head_delta,
                tile * KEYS, tl.minimum(rest, length), keys, length, scale * LOG2_E,
                True, DIM, ROWS, OPERAND,
            )  # fmt: skip
        dk_sum, dv_sum = _add_rows(
            dk_sum, dv_sum, k_tile, v_tile, head_q, head_dout, head_lse2, head_delta,
            rest, length, keys, length, scale * LOG2_E,
            False, DIM, ROWS, OPERAND,
        )  # fmt: skip
    tl.store(dk + k_at, (dk_sum * scale).to(dk.dtype.element_ty), mask=k_inside)
    tl.store(dv + k_at, dv_sum.to(dv.dtype.element_ty), mask=k_inside)


@triton.jit
def _add_keys(
    dq_sum,
    q_tile,
    dout_tile,
    sums,
    deltas,
    k,
    v,
    start,
    end,
    rows,
    length,
    scale2,
    MASKED: tl.constexpr,
    DIM: tl.constexpr,
    KEYS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """What the keys from `start` to `end` add to the gradient of a tile of queries."""
    dims = tl.arange(0, DIM)
    for first in range(start, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        inside = keys[:, None] < length
        at = keys[:, None] * DIM + dims[None, :]
        k_tile = tl.load(k + at, mask=inside, other=0.0)
        given = k_tile.dtype
        k_tile = k_tile.to(OPERAND)
        weights = tl.exp2(tl.dot(q_tile, tl.trans(k_tile)) * scale2 - sums[:, None])
        if MASKED:
            weights = tl.where(keys[None, :] <= rows[:, None], weights, 0.0)
        v_tile = tl.load(v + at, mask=inside, other=0.0).to(OPERAND)
        dscores = weights * (tl.dot(dout_tile, tl.trans(v_tile)) - deltas[:, None])
        dq_sum = tl.dot(dscores.to(given).to(OPERAND), k_tile, dq_sum)
    return dq_sum


@triton.jit
def _of_queries(
    q,
    k,
    v,
    dout,
    lse2,
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
    tile = tl.program_id(0)
    if CAUSAL:  # the last tiles have the most keys, and begin first
        tile = tl.num_programs(0) - 1 - tile
    rows = tile * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    inside = rows < length
    at = head * length * DIM + rows[:, None] * DIM + dims[None, :]
    q_tile = tl.load(q + at, mask=inside[:, None], other=0.0).to(OPERAND)
    dout_tile = tl.load(dout + at, mask=inside[:, None], other=0.0).to(OPERAND)
    sums = tl.load(lse2 + head * length + rows, mask=inside, other=0.0)
    deltas = tl.load(delta + head * length + rows, mask=inside, other=0.0)
    dq_sum = tl.zeros((ROWS, DIM), dtype=tl.float32)
    head_k, head_v = k + head // group * length * DIM, v + head // group * length * DIM
    whole = length
    if CAUSAL:
        whole = tile * ROWS
    dq_sum = _add_keys(
        dq_sum, q_tile, dout_tile, sums, deltas, head_k, head_v, 0, whole, rows, length,
        scale * LOG2_E, False, DIM, KEYS, OPERAND,
    )  # fmt: skip
    if CAUSAL:
        dq_sum = _add_keys(
            dq_sum, q_tile, dout_tile, sums, deltas, head_k, head_v, whole,
            tl.minimum(whole + ROWS, length), rows, length,
            scale * LOG2_E, True, DIM, KEYS, OPERAND,
        )  # fmt: skip
    tl.store(dq + at, (dq_sum * scale).to(dq.dtype.element_ty), mask=inside[:, None])


def flash_attention_backward(q, k, v, out, dout, lse, dq, dk, dv, causal, scale):
    batch, heads, length, dim = q.shape
    kv_heads = k.shape[1]
    operand, of_keys, of_queries = DTYPES[q.dtype], OF_KEYS[dim], OF_QUERIES[dim]
    if q.device.type == "cpu":  # Triton's interpreter multiplies the bits of bf16 as integers
        operand = tl.float32
    delta, lse2 = torch.empty_like(lse), torch.empty_like(lse)
    count = batch * heads * length
    _delta[(triton.cdiv(count, 64),)](out, dout, lse, delta, lse2, count, DIM=dim, BLOCK=64)
    kinds = {"CAUSAL": causal, "DIM": dim, "OPERAND": operand}
    group = heads // kv_heads
    _of_keys[(triton.cdiv(length, of_keys["KEYS"]), batch * kv_heads)](
        q, k, v, dout, lse2, delta, dk, dv, group, length, scale, **kinds, **of_keys
    )
    _of_queries[(triton.cdiv(length, of_queries["ROWS"]), batch * heads)](
        q, k, v, dout, lse2, delta, dq, group, length, scale, **kinds, **of_queries
    )
