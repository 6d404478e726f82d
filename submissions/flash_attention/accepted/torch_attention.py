"""Attention by PyTorch's fused operator, where it supports the case. Its mask is aligned top-left.

The problem's mask is aligned bottom-right. With more queries than keys the first queries see no
keys, and the others form a square. With more keys than queries the mask is passed explicitly.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention


def flash_attention(q, k, v, out, causal, scale):
    q_len, k_len = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if causal and q_len < k_len:
        mask = torch.ones(q_len, k_len, dtype=torch.bool, device=q.device).tril(k_len - q_len)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out.copy_(scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale))
        return
    blind = q_len - k_len if causal else 0
    out[:, :, :blind] = 0
    out[:, :, blind:] = scaled_dot_product_attention(
        q[:, :, blind:], k, v, is_causal=causal, scale=scale, enable_gqa=grouped
    )
