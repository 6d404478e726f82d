"""Flash attention that forgets to rescale its running sums when the maximum rises."""

import torch

TILE = 32


def flash_attention(q, k, v, out, causal, scale):
    group = q.shape[1] // k.shape[1]
    q_len, k_len = q.shape[2], k.shape[2]
    k, v = k.repeat_interleave(group, dim=1).float(), v.repeat_interleave(group, dim=1).float()
    total = torch.zeros(q.shape, device=q.device)
    weight = torch.zeros(q.shape[:3] + (1,), device=q.device)
    highest = torch.full_like(weight, float("-inf"))
    last_key = torch.arange(q_len, device=q.device)[:, None] + k_len - q_len
    for start in range(0, k_len, TILE):
        scores = q.float() @ k[:, :, start : start + TILE].transpose(-1, -2) * scale
        if causal:
            keys = torch.arange(start, start + scores.shape[-1], device=q.device)
            scores = scores.masked_fill(keys > last_key, float("-inf"))
        highest = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
        chances = (scores - highest).exp().nan_to_num(0.0)
        weight += chances.sum(dim=-1, keepdim=True)
        total += chances @ v[:, :, start : start + TILE]
    out.copy_((total / weight).nan_to_num(0.0))
