"""Attention whose causal mask is aligned top-left: wrong where there are more keys than queries."""

from torch.nn.functional import scaled_dot_product_attention


def flash_attention(q, k, v, out, causal, scale):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    out.copy_(scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale))
