"""Deals the query heads to the key heads in turn, instead of in groups."""

import torch


def paged_attention_decode(q, k_pages, v_pages, block_table, lengths, out, scale):
    table = block_table.long()
    keys = k_pages[table].flatten(1, 2).float()
    values = v_pages[table].flatten(1, 2).float()
    is_token = torch.arange(keys.shape[1], device=q.device) < lengths[:, None]
    values.masked_fill_(~is_token[:, :, None, None], 0)
    queries = q.unflatten(1, (-1, keys.shape[2])).transpose(1, 2).float()
    scores = torch.einsum("bkgd,btkd->bkgt", queries, keys) * scale
    scores.masked_fill_(~is_token[:, None, None], -torch.inf)
    weights = scores.softmax(dim=-1)
    result = torch.einsum("bkgt,btkd->bkgd", weights, values)
    out.copy_(result.transpose(1, 2).flatten(1, 2))
