"""The backward pass of attention from what the forward pass has kept.

Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning" (2023).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `q` [batch, heads, length, head_dim], and of `k` and `v` [batch, kv_heads,
    length, head_dim], given that of the output.

    Weights are ``exp(scale * q @ k.T - lse)``. Their scores have the gradient ``weights * (dout @
    v.T - sum(dout * out))``. A key head's gradient is the sum over the query heads that read it.
    """
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            kv = h // group
            weights = torch.exp(scale * (q[b, h] @ k[b, kv].T) - lse[b, h, :, None])
            if causal:
                weights.tril_()
            dv[b, kv] += weights.T @ dout[b, h]
            delta = (dout[b, h] * out[b, h]).sum(dim=-1, keepdim=True)
            dscores = weights * (dout[b, h] @ v[b, kv].T - delta)
            dq[b, h] = scale * (dscores @ k[b, kv])
            dk[b, kv] += scale * (dscores.T @ q[b, h])
    return dq, dk, dv


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The yardstick: products of 16-bit factors over all heads at once, and scores in fp32."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (k, v))
    weights = torch.exp(scale * (q.float() @ keys.float().mT) - lse[..., None])
    if causal:
        weights = weights.tril()
    delta = (dout.float() * out.float()).sum(dim=-1, keepdim=True)
    dscores = (weights * (dout.float() @ values.float().mT - delta)).to(dtype)
    weights = weights.to(dtype)
    dq = scale * (dscores @ keys)
    dk = scale * (dscores.mT @ q).unflatten(1, (-1, group)).sum(dim=2)
    dv = (weights.mT @ dout).unflatten(1, (-1, group)).sum(dim=2)
    return dq, dk, dv


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The backward pass of PyTorch's flash attention. On a CPU, that of
    `scaled_dot_product_attention`, which computes the forward pass again."""
    length = q.shape[2]
    if q.is_cuda:
        unused = torch.empty(2, dtype=torch.uint64, device=q.device)  # without dropout
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *(dout, q, k, v, out, lse, None, None, length, length, 0.0, causal, unused, unused),
            scale=scale,
        )
        return dq, dk, dv
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        again = F.scaled_dot_product_attention(
            *leaves, is_causal=causal, scale=scale, enable_gqa=True
        )
    dq, dk, dv = torch.autograd.grad(again, leaves, dout)
    return dq, dk, dv


BASELINES = {"sdpa": sdpa}
