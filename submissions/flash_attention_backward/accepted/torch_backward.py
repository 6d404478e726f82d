"""The backward pass in PyTorch, with all weights in memory: in fp32, head by head."""

import torch


def flash_attention_backward(q, k, v, out, dout, lse, dq, dk, dv, causal, scale):
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for kv in range(kv_heads):
            heads = slice(kv * group, (kv + 1) * group)
            queries, gradients = q[b, heads].float(), dout[b, heads].float()
            keys, values = k[b, kv].float(), v[b, kv].float()
            weights = torch.exp(scale * (queries @ keys.T) - lse[b, heads, :, None])
            if causal:
                weights = weights.tril()
            delta = (gradients * out[b, heads].float()).sum(dim=-1, keepdim=True)
            dscores = scale * weights * (gradients @ values.T - delta)
            dq[b, heads] = (dscores @ keys).to(q.dtype)
            dk[b, kv] = (dscores.mT @ queries).sum(dim=0).to(k.dtype)
            dv[b, kv] = (weights.mT @ gradients).sum(dim=0).to(v.dtype)
