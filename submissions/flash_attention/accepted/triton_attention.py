"""Flash attention in Triton: a tile of queries loops over the keys with an online softmax.

Tiles of keys that every query of the tile sees come first, without a mask; the edge follows with
one.
"""

import math

import torch
import triton
import triton.language as tl

DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _walk(
    total,
    weight,
    highest,
    q_tile,
    k,
    v,
    k_row,
    k_dim,
    v_row,
    v_dim,
    last_key,
    k_len,
    scale,
    first,
    end,
    DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
    MASKED: tl.constexpr,
):
    dims = tl.arange(0, DIM)
    for start in range(first, end, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        k_at = k + keys[:, None] * k_row + dims[None, :] * k_dim
        v_at = v + keys[:, None] * v_row + dims[None, :] * v_dim
        if MASKED:
            inside = keys[:, None] < k_len
            k_tile = tl.load(k_at, mask=inside, other=0.0)
            v_tile = tl.load(v_at, mask=inside, other=0.0)
        else:
            k_tile = tl.load(k_at)
            v_tile = tl.load(v_at)
        scores = tl.dot(q_tile, tl.trans(k_tile.to(OPERAND))) * scale
        if MASKED:
            seen = (keys[None, :] <= last_key[:, None]) & (keys[None, :] < k_len)
            scores = tl.where(seen, scores, float("-inf"))
        above = tl.maximum(highest, tl.max(scores, axis=1))
        base = above
        if MASKED:  # a query that has seen no key yet
            base = tl.where(above == float("-inf"), 0.0, above)
        fade = tl.exp2(highest - base)
        # The weights are summed as rounded, so that rounding them does not shift the mean.
        chances = tl.exp2(scores - base[:, None]).to(v_tile.dtype)
        weight = weight * fade + tl.sum(chances.to(tl.float32), axis=1)
        total = tl.dot(chances.to(OPERAND), v_tile.to(OPERAND), total * fade[:, None])
        highest = above
    return total, weight, highest


@triton.jit
def _attention(
    q,
    k,
    v,
    out,
    q_batch,
    q_head,
    q_row,
    q_dim,
    k_batch,
    k_head,
    k_row,
    k_dim,
    v_batch,
    v_head,
    v_row,
    v_dim,
    heads,
    group,
    q_len,
    k_len,
    scale,
    CAUSAL: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):
    # The last queries see the most keys: the longest work starts first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    q += batch * q_batch + head * q_head
    k += batch * k_batch + (head // group) * k_head
    v += batch * v_batch + (head // group) * v_head
    out += tl.program_id(1).to(tl.int64) * q_len * DIM

    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    dims = tl.arange(0, DIM)
    row_inside = rows[:, None] < q_len
    q_tile = tl.load(q + rows[:, None] * q_row + dims[None, :] * q_dim, mask=row_inside, other=0.0)
    q_tile = q_tile.to(OPERAND)

    if CAUSAL:
        last_key = rows + k_len - q_len
        seen_by_all = tl.minimum(tl.maximum(tile * BLOCK_Q + k_len - q_len + 1, 0), k_len)
        seen_by_any = tl.minimum(tl.maximum((tile + 1) * BLOCK_Q + k_len - q_len, 0), k_len)
    else:
        last_key = tl.zeros_like(rows) + k_len
        seen_by_all = k_len
        seen_by_any = k_len
    edge = seen_by_all // BLOCK_K * BLOCK_K

    total = tl.zeros((BLOCK_Q, DIM), dtype=tl.float32)
    weight = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    highest = tl.full((BLOCK_Q,), float("-inf"), dtype=tl.float32)
    total, weight, highest = _walk(
        total, weight, highest, q_tile, k, v, k_row, k_dim, v_row, v_dim, last_key, k_len, scale,
        0, edge, DIM, BLOCK_K, OPERAND, False,
    )  # fmt: skip
    total, weight, highest = _walk(
        total, weight, highest, q_tile, k, v, k_row, k_dim, v_row, v_dim, last_key, k_len, scale,
        edge, seen_by_any, DIM, BLOCK_K, OPERAND, True,
    )  # fmt: skip

    # A query that saw no key has weight 0 and total 0.
    result = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
    out_at = out + rows[:, None] * DIM + dims[None, :]
    tl.store(out_at, result.to(out.dtype.element_ty), mask=row_inside)


def flash_attention(q, k, v, out, causal, scale):
    batch, heads, q_len, dim = q.shape
    kv_heads, k_len = k.shape[1], k.shape[2]
    block_q = min(max(triton.next_power_of_2(q_len), 16), 128)
    block_k = 128 if dim <= 64 else 64
    operand = DTYPES[q.dtype]
    if q.device.type == "cpu":  # Triton's interpreter multiplies the bits of bf16 as integers
        operand = tl.float32
    _attention[(triton.cdiv(q_len, block_q), batch * heads)](
        q,
        k,
        v,
        out,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        heads,
        heads // kv_heads,
        q_len,
        k_len,
        scale * math.log2(math.e),
        CAUSAL=causal,
        DIM=dim,
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        OPERAND=operand,
        num_warps=8 if block_q == 128 else 4,
        num_stages=3,
    )
