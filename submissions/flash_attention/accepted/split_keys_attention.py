"""Attention in PyTorch with the keys split into ranges, merged by their maxima and sums."""

import torch

KEYS_EACH = 512


def flash_attention(q, k, v, out, causal, scale):
    group = q.shape[1] // k.shape[1]
    q_len, k_len = q.shape[2], k.shape[2]
    queries = torch.arange(q_len, device=q.device)[:, None] + k_len - q_len
    highest = torch.full((*q.shape[:3], 1), -torch.inf, device=q.device)
    total = torch.zeros_like(highest)
    result = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    for first in range(0, k_len, KEYS_EACH):
        keys = k[:, :, first : first + KEYS_EACH].repeat_interleave(group, dim=1)
        values = v[:, :, first : first + KEYS_EACH].repeat_interleave(group, dim=1)
        scores = (q.float() @ keys.float().mT) * scale
        if causal:
            index = first + torch.arange(keys.shape[2], device=q.device)
            scores.masked_fill_(index > queries, -torch.inf)
        grown = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
        # Differences of two infinities are NaN: nothing was seen yet.
        rescale = torch.exp(highest - grown).nan_to_num_(nan=0.0)
        weights = torch.exp(scores - grown).nan_to_num_(nan=0.0)
        total = total * rescale + weights.sum(dim=-1, keepdim=True)
        result = result * rescale + weights.to(v.dtype).float() @ values.float()
        highest = grown
    out.copy_((result / total).nan_to_num_(nan=0.0))
