"""Flash attention in Triton for Hopper: keys and values come by TMA, through 2-D descriptors.

A tile of queries iterates over the keys with a running softmax in base 2. Tiles of keys that every
query of the tile attends to go first, without a mask; the edge follows with one. `scale` is
positive.
"""

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

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
    k_column,
    v_row,
    v_column,
    last_key,
    k_len,
    scale,
    first,
    end,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
    MASKED: tl.constexpr,
):
    for start in range(first, end, BLOCK_K):
        k_tile = k.load([k_row + start, k_column]).to(OPERAND)
        scores = tl.dot(q_tile, k_tile.T)
        if MASKED:
            # Rows beyond k_len are another head's, or zero.
            keys = start + tl.arange(0, BLOCK_K)
            seen = (keys[None, :] <= last_key[:, None]) & (keys[None, :] < k_len)
            scores = tl.where(seen, scores, float("-inf"))
        above = tl.maximum(highest, tl.max(scores, axis=1) * scale)
        base = above
        if MASKED:  # a query that has seen no key yet
            base = tl.where(above == float("-inf"), 0.0, above)
        chances = tl.exp2(scores * scale - base[:, None])
        fade = tl.exp2(highest - base)
        weight = weight * fade + tl.sum(chances, axis=1)
        total = total * fade[:, None]
        v_tile = v.load([v_row + start, v_column]).to(OPERAND)
        total = tl.dot(chances.to(OPERAND), v_tile, total)
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
    k_rows_batch,
    k_rows_head,
    k_columns_head,
    v_rows_batch,
    v_rows_head,
    v_columns_head,
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
    batch = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    kv_head = head // group
    k_at = batch * k_rows_batch + kv_head * k_rows_head
    v_at = batch * v_rows_batch + kv_head * v_rows_head
    q += batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    out += tl.program_id(1).to(tl.int64) * q_len * DIM

    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    dims = tl.arange(0, DIM)
    row_inside = rows[:, None] < q_len
    q_tile = tl.load(q + rows[:, None] * q_row + dims[None, :], mask=row_inside, other=0.0)
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
        total, weight, highest, q_tile, k, v, k_at, kv_head * k_columns_head,
        v_at, kv_head * v_columns_head, last_key, k_len, scale, 0, edge,
        BLOCK_K, OPERAND, False,
    )  # fmt: skip
    total, weight, highest = _walk(
        total, weight, highest, q_tile, k, v, k_at, kv_head * k_columns_head,
        v_at, kv_head * v_columns_head, last_key, k_len, scale, edge, seen_by_any,
        BLOCK_K, OPERAND, True,
    )  # fmt: skip

    # A query that saw no key has weight 0 and total 0.
    result = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
    out_at = out + rows[:, None] * DIM + dims[None, :]
    tl.store(out_at, result.to(out.dtype.element_ty), mask=row_inside)


def _matrix(x, block_rows):
    """`x` [batch, heads, length, dim] as a matrix of rows of memory: its descriptor, and how many
    rows a batch, rows a head and columns a head lie apart.
    """
    batch, heads, length, dim = x.shape
    if x.transpose(1, 2).is_contiguous():
        shape, apart = [batch * length, heads * dim], (length, 0, dim)
    else:
        x = x.contiguous()
        shape, apart = [batch * heads * length, dim], (heads * length, length, 0)
    return TensorDescriptor(x, shape, [shape[1], 1], [block_rows, dim]), apart


def _tile(q_len, dim):
    """Queries and keys of a tile, warps, stages."""
    if q_len <= 64:
        return max(triton.next_power_of_2(q_len), 16), 64, 4, 3
    return (128, 128, 8, 3) if dim <= 64 else (128, 64, 8, 3)


def launch(q, k, v, out, causal, scale, tile):
    """One launch with `tile` as `_tile` gives it."""
    batch, heads, q_len, dim = q.shape
    block_q, block_k, warps, stages = tile
    operand = DTYPES[q.dtype]
    if q.device.type == "cpu":  # Triton's interpreter multiplies the bits of bf16 as integers
        operand = tl.float32
    if q.stride(3) != 1:
        q = q.contiguous()
    k_matrix, k_apart = _matrix(k, block_k)
    v_matrix, v_apart = _matrix(v, block_k)
    _attention[(triton.cdiv(q_len, block_q), batch * heads)](
        q,
        k_matrix,
        v_matrix,
        out,
        q.stride(0),
        q.stride(1),
        q.stride(2),
        *k_apart,
        *v_apart,
        heads,
        heads // k.shape[1],
        q_len,
        k.shape[2],
        scale * math.log2(math.e),
        CAUSAL=causal,
        DIM=dim,
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        OPERAND=operand,
        num_warps=warps,
        num_stages=stages,
    )


def flash_attention(q, k, v, out, causal, scale):
    if q.is_cuda and (not causal or q.shape[2] == k.shape[2]):
        # cuDNN's kernel is faster on plain cases, although its output must be copied.
        grouped = q.shape[1] != k.shape[1]
        out.copy_(
            F.scaled_dot_product_attention(
                q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped
            )
        )
        return
    launch(q, k, v, out, causal, scale, _tile(q.shape[2], q.shape[3]))
