"""Attention of one head as the textbook has it, compiled by torch.compile."""

import torch


@torch.compile(dynamic=True)
def _one_head(q, k, v, sees, scale):
    scores = torch.where(sees, q.float() @ k.float().T * scale, -torch.inf)
    highest = scores.amax(dim=-1, keepdim=True)
    # A query that sees no key has no maximum, and gives zeros.
    weights = torch.where(sees, torch.exp(scores - highest), 0.0)
    total = weights.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, (weights @ v.float()) / total, 0.0)


def flash_attention(q, k, v, out, causal, scale):
    q_len, k_len = q.shape[2], k.shape[2]
    group = q.shape[1] // k.shape[1]
    sees = torch.ones(q_len, k_len, dtype=torch.bool, device=q.device)
    if causal:
        sees = sees.tril(k_len - q_len)
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys, values = k[batch, head // group], v[batch, head // group]
            out[batch, head] = _one_head(q[batch, head], keys, values, sees, scale)
