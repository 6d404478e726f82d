"""Paged attention in Triton: a program for each sequence and key head goes over all its tokens with
an online softmax. The query heads of the group are the rows of its products."""

import torch
import triton
import triton.language as tl

DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _decode(
    q,
    k_pages,
    v_pages,
    block_table,
    lengths,
    out,
    columns,
    kv_heads,
    group,
    scale,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    OPERAND: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    length = tl.load(lengths + sequence)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    head = (sequence * kv_heads + kv_head) * group + rows
    at = head[:, None] * DIM + dims[None, :]
    queries = tl.load(q + at, mask=rows[:, None] < group, other=0.0).to(OPERAND)
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((ROWS,), dtype=tl.float32)
    total = tl.zeros((ROWS, DIM), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < length
        page = tl.load(block_table + sequence * columns + token // PAGE, mask=inside, other=0)
        slot = page.to(tl.int64) * PAGE + token % PAGE
        place = (slot * kv_heads + kv_head)[:, None] * DIM + dims[None, :]
        keys = tl.load(k_pages + place, mask=inside[:, None], other=0.0).to(OPERAND)
        values = tl.load(v_pages + place, mask=inside[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        above = tl.maximum(highest, tl.max(scores, axis=1))
        fade = tl.exp(highest - above)
        chances = tl.exp(scores - above[:, None])
        weight = weight * fade + tl.sum(chances, axis=1)
        rounded = chances.to(values.dtype).to(OPERAND)
        total = total * fade[:, None] + tl.dot(rounded, values.to(OPERAND))
        highest = above
    result = (total / weight[:, None]).to(out.dtype.element_ty)
    tl.store(out + at, result, mask=rows[:, None] < group)


def paged_attention_decode(q, k_pages, v_pages, block_table, lengths, out, scale):
    batch, heads, dim = q.shape
    page, kv_heads = k_pages.shape[1:3]
    group = heads // kv_heads
    operand, block = DTYPES[q.dtype], 64
    if q.device.type == "cpu":  # Triton's interpreter multiplies the bits of bf16 as integers
        operand, block = tl.float32, 256
    _decode[(batch, kv_heads)](
        q,
        k_pages,
        v_pages,
        block_table,
        lengths,
        out,
        block_table.shape[1],
        kv_heads,
        group,
        scale,
        PAGE=page,
        DIM=dim,
        ROWS=max(16, triton.next_power_of_2(group)),
        BLOCK=block,
        OPERAND=operand,
    )
