"""Paged attention in Triton: each sequence is split into parts, which are merged by their sums.

A program takes all query heads of one key head over one part of one sequence, so that keys and
values move once. There are enough parts to fill the GPU even with a single sequence, by the longest
length, which the host knows from the block table; a part that begins beyond its sequence ends at
once. The second kernel merges the parts of each head. With one part, the first kernel writes the
result itself.
"""

import math

import torch
import triton
import triton.language as tl

DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
PROGRAMS_EACH = 4
"""Programs for each SM, which together have enough loads in flight."""
LEAST_PART = 256
"""Tokens of a part, below which its start and its merging cost more than it gains."""


@triton.jit
def _part(
    q,
    k_pages,
    v_pages,
    block_table,
    lengths,
    out,
    partial,
    log_sums,
    columns,
    kv_heads,
    group,
    part_len,
    scale,
    PARTS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    OPERAND: tl.constexpr,
):
    part = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    length = tl.load(lengths + sequence)
    first = part * part_len
    end = tl.minimum(first + part_len, length)
    if first < end:
        rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
        is_head = rows < group
        head = (sequence * kv_heads + kv_head) * group + rows
        at = head[:, None] * DIM + dims[None, :]
        queries = tl.load(q + at, mask=is_head[:, None], other=0.0).to(OPERAND)
        highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
        weight = tl.zeros((ROWS,), dtype=tl.float32)
        total = tl.zeros((ROWS, DIM), dtype=tl.float32)
        for start in range(first, end, BLOCK):
            token = start + tl.arange(0, BLOCK)
            inside = token < end
            page = tl.load(block_table + sequence * columns + token // PAGE, mask=inside, other=0)
            slot = page.to(tl.int64) * PAGE + token % PAGE
            place = (slot * kv_heads + kv_head)[:, None] * DIM + dims[None, :]
            # Each byte is used once: it need not stay in the cache.
            keys = tl.load(
                k_pages + place, mask=inside[:, None], other=0.0, eviction_policy="evict_first"
            )
            values = tl.load(
                v_pages + place, mask=inside[:, None], other=0.0, eviction_policy="evict_first"
            )
            scores = tl.dot(queries, tl.trans(keys.to(OPERAND))) * scale
            scores = tl.where(inside[None, :], scores, float("-inf"))
            above = tl.maximum(highest, tl.max(scores, axis=1))
            fade = tl.exp2(highest - above)
            # The weights are summed as rounded, so that rounding them does not shift the mean.
            chances = tl.exp2(scores - above[:, None]).to(values.dtype)
            weight = weight * fade + tl.sum(chances.to(tl.float32), axis=1)
            total = tl.dot(chances.to(OPERAND), values.to(OPERAND), total * fade[:, None])
            highest = above
        result = total / weight[:, None]
        if PARTS == 1:
            tl.store(out + at, result.to(out.dtype.element_ty), mask=is_head[:, None])
        else:
            place = head * PARTS + part
            tl.store(partial + place[:, None] * DIM + dims[None, :], result, mask=is_head[:, None])
            tl.store(log_sums + place, highest + tl.log2(weight), mask=is_head)


@triton.jit
def _merge(
    partial,
    log_sums,
    lengths,
    out,
    heads,
    part_len,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    parts, dims = tl.arange(0, PADDED), tl.arange(0, DIM)
    # The first kernel wrote nothing of the other parts.
    written = parts * part_len < tl.load(lengths + head // heads)
    place = head * PARTS + parts
    sums = tl.load(log_sums + place, mask=written, other=float("-inf"))
    share = tl.exp2(sums - tl.max(sums, axis=0))
    rows = partial + place[:, None] * DIM + dims[None, :]
    results = tl.load(rows, mask=written[:, None], other=0.0)
    merged = tl.sum(results * share[:, None], axis=0) / tl.sum(share, axis=0)
    tl.store(out + head * DIM + dims, merged.to(out.dtype.element_ty))


def launch(q, k_pages, v_pages, block_table, lengths, out, scale, parts=None, block=64):
    batch, heads, dim = q.shape
    page, kv_heads = k_pages.shape[1:3]
    columns = block_table.shape[1]
    operand = DTYPES[q.dtype]
    if q.device.type == "cpu":  # Triton's interpreter multiplies the bits of bf16 as integers
        operand = tl.float32
    if parts is None:
        parts = _parts(batch * kv_heads, columns * page, q.device)
    part_len = triton.cdiv(triton.cdiv(columns * page, parts), block) * block
    parts = triton.cdiv(columns * page, part_len)
    partial = log_sums = out  # not used with one part
    if parts > 1:
        partial = torch.empty(batch * heads * parts * dim, dtype=torch.float32, device=q.device)
        log_sums = torch.empty(batch * heads * parts, dtype=torch.float32, device=q.device)
    _part[(parts, kv_heads, batch)](
        q,
        k_pages,
        v_pages,
        block_table,
        lengths,
        out,
        partial,
        log_sums,
        columns,
        kv_heads,
        heads // kv_heads,
        part_len,
        scale * math.log2(math.e),
        PARTS=parts,
        PAGE=page,
        DIM=dim,
        ROWS=max(16, triton.next_power_of_2(heads // kv_heads)),
        BLOCK=block,
        OPERAND=operand,
        num_warps=4,
        num_stages=3,
    )
    if parts > 1:
        _merge[(batch * heads,)](
            partial,
            log_sums,
            lengths,
            out,
            heads,
            part_len,
            PARTS=parts,
            PADDED=triton.next_power_of_2(parts),
            DIM=dim,
        )


def _parts(pairs, longest, device):
    """The number of parts into which sequences are split, for `pairs` of sequence and key head."""
    if device.type == "cpu":  # the interpreter pays per program
        return min(2, triton.cdiv(longest, 64))
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = triton.cdiv(PROGRAMS_EACH * sms, pairs)
    return max(1, min(wanted, triton.cdiv(longest, LEAST_PART)))


def paged_attention_decode(q, k_pages, v_pages, block_table, lengths, out, scale):
    launch(q, k_pages, v_pages, block_table, lengths, out, scale)
