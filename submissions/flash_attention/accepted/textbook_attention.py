"""Attention as the paper has it, in PyTorch: all scores of a head in fp32, softmax, product."""

import torch


def flash_attention(q, k, v, out, causal, scale):
    q_len, k_len = q.shape[2], k.shape[2]
    group = q.shape[1] // k.shape[1]
    sees = torch.ones(q_len, k_len, dtype=torch.bool, device=q.device)
    if causal:
        sees = sees.tril(k_len - q_len)
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys, values = k[batch, head // group].float(), v[batch, head // group].float()
            scores = (q[batch, head].float() @ keys.T * scale).masked_fill_(~sees, -torch.inf)
            # A query that sees no key has NaN weights, and gives zeros.
            weights = torch.softmax(scores, dim=-1).nan_to_num_(nan=0.0)
            out[batch, head] = weights @ values
