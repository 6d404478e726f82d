"""Attention that returns its output: scores of one block of queries at a time, in fp32."""

import torch

BLOCK = 256


def flash_attention(q, k, v, causal, scale):
    q_len, k_len = q.shape[2], k.shape[2]
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1).float()
    v = v.repeat_interleave(group, dim=1).float()
    key = torch.arange(k_len, device=q.device)
    blocks = []
    for start in range(0, q_len, BLOCK):
        block = q[:, :, start : start + BLOCK].float()
        scores = block @ k.transpose(-1, -2) * scale
        if causal:
            query = torch.arange(start, start + block.shape[2], device=q.device)
            hidden = key > query[:, None] + k_len - q_len
            scores = scores.masked_fill(hidden, float("-inf"))
        # A query that sees no key gives NaN here, and zeros in the end.
        blocks.append((scores.softmax(dim=-1).nan_to_num(0.0) @ v).to(q.dtype))
    return torch.cat(blocks, dim=2)
