"""Attention that pads the keys to whole tiles of 64 and forgets to mask the padding."""

import torch


def flash_attention(q, k, v, out, causal, scale):
    group, tail = q.shape[1] // k.shape[1], -k.shape[2] % 64
    padded_k = torch.nn.functional.pad(k, (0, 0, 0, tail)).float()
    padded_v = torch.nn.functional.pad(v, (0, 0, 0, tail)).float()
    scores = q.float() @ padded_k.repeat_interleave(group, dim=1).transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(dim=-1).nan_to_num(0.0)
    out.copy_(weights @ padded_v.repeat_interleave(group, dim=1))
