"""Scaled dot-product attention, and what a PyTorch user writes for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

SCORES_AT_ONCE = 1 << 26
"""Scores held at a time: 512 MiB in float64, whatever the lengths."""


def reference(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """Attention of `q` [batch, heads, q_len, head_dim] over `k`, `v` [batch, kv_heads, k_len, …].

    Query head h reads key head ``h // (heads // kv_heads)``. With `causal`, query i sees key j
    where ``j <= i + k_len - q_len``; a query that sees no key gives zeros. Contiguous result.
    """
    batch, heads, q_len, head_dim = q.shape
    group = heads // k.shape[1]
    out = q.new_empty(batch, heads, q_len, head_dim)
    for b in range(batch):
        for h in range(heads):
            _one_head(q[b, h], k[b, h // group], v[b, h // group], causal, scale, out[b, h])
    return out


def _one_head(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, out: Tensor) -> None:
    q_len, k_len = q.shape[0], k.shape[0]
    rows_at_once = max(1, SCORES_AT_ONCE // k_len)
    keys = torch.arange(k_len, device=q.device)
    for start in range(0, q_len, rows_at_once):
        rows = slice(start, min(start + rows_at_once, q_len))
        scores = (q[rows] @ k.T) * scale
        if causal:
            last_key = torch.arange(rows.start, rows.stop, device=q.device) + k_len - q_len
            scores.masked_fill_(keys > last_key[:, None], -torch.inf)
        # Only a row that sees no key has NaN here.
        out[rows] = torch.softmax(scores, dim=-1).nan_to_num_(nan=0.0) @ v


def eager(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """The yardstick: PyTorch's scaled_dot_product_attention."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    q_len, k_len = q.shape[2], k.shape[2]
    if not causal or q_len == k_len:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        return out.contiguous()
    mask = torch.ones(q_len, k_len, dtype=torch.bool, device=q.device).tril(k_len - q_len)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return out.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0).contiguous()


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """PyTorch's fused kernels without a mask in memory or copies of keys: a practitioner's call."""
    q_len, k_len = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if causal and q_len < k_len:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=causal_lower_right(q_len, k_len), scale=scale, enable_gqa=grouped
        )
    # With more queries than keys the first ones see nothing, and the others form a square.
    blind = q_len - k_len if causal else 0
    out = F.scaled_dot_product_attention(
        q[:, :, blind:], k, v, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return F.pad(out, (0, 0, blind, 0)) if blind else out


BASELINES = {"sdpa": sdpa}
