"""Attention of one query a sequence over a paged cache, and what a PyTorch user writes for it.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(2023).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def reference(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    """Attention of `q` [batch, heads, head_dim]; token t of sequence b is in page
    ``block_table[b, t // page_size]`` at ``t % page_size``.

    Query head h reads key head ``h // (heads // kv_heads)``. Only the first ``lengths[b]`` tokens
    are read: what else pages hold may be NaN.
    """
    out = torch.empty_like(q)
    kv_heads = k_pages.shape[2]
    for b, length in enumerate(lengths.tolist()):
        keys, values = (tokens_of(p, block_table[b], length) for p in (k_pages, v_pages))
        queries = q[b].unflatten(0, (kv_heads, -1))
        scores = torch.einsum("kgd,tkd->kgt", queries, keys) * scale
        weights = torch.softmax(scores, dim=-1)
        out[b] = torch.einsum("kgt,tkd->kgd", weights, values).flatten(0, 1)
    return out


def tokens_of(pages: Tensor, row: Tensor, length: int) -> Tensor:
    """The first `length` tokens of the sequence with this row of the block table, [length,
    kv_heads, head_dim]."""
    token = torch.arange(length, device=pages.device)
    page_size = pages.shape[1]
    return pages[row.long()[token // page_size], token % page_size]


def eager(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    """The yardstick: all sequences gathered and padded to the longest, then PyTorch's attention,
    with the query heads of a group as queries of their key head."""
    keys, values = (pages[block_table.long()].flatten(1, 2) for pages in (k_pages, v_pages))
    is_token = torch.arange(keys.shape[1], device=q.device) < lengths[:, None]
    for cache in (keys, values):  # a weight of 0 does not remove a NaN
        cache.masked_fill_(~is_token[:, :, None, None], 0.0)
    out = scaled_dot_product_attention(
        q.unflatten(1, (keys.shape[2], -1)),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=is_token[:, None, None],
        scale=scale,
    )
    return out.flatten(1, 2).contiguous()
