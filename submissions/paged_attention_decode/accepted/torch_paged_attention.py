"""Paged attention in PyTorch: all sequences gathered and padded to the longest, in fp32."""

import torch


def paged_attention_decode(q, k_pages, v_pages, block_table, lengths, out, scale):
    table = block_table.long()
    keys = k_pages[table].flatten(1, 2).float()
    values = v_pages[table].flatten(1, 2).float()
    is_token = torch.arange(keys.shape[1], device=q.device) < lengths[:, None]
    # Pages may hold NaN where no token is, which a weight of 0 does not remove.
    values.masked_fill_(~is_token[:, :, None, None], 0)
    queries = q.unflatten(1, (keys.shape[2], -1)).float()
    scores = torch.einsum("bkgd,btkd->bkgt", queries, keys) * scale
    scores.masked_fill_(~is_token[:, None, None], -torch.inf)
    weights = scores.softmax(dim=-1)
    out.copy_(torch.einsum("bkgt,btkd->bkgd", weights, values).flatten(1, 2))
