"""Requires contiguous inputs, which the problem does not promise."""

import torch


def flash_attention(q, k, v, out, causal, scale):
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        raise RuntimeError("q, k and v must be contiguous")
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1).float(), v.repeat_interleave(group, dim=1).float()
    scores = q.float() @ k.transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    out.copy_(scores.softmax(dim=-1).nan_to_num(0.0) @ v)
