"""RMSNorm that squares in the input's dtype: in fp16 a square overflows from 256 on."""

import torch


def rms_norm(x, weight, out, eps):
    root = torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + eps)
    out.copy_(x * root * weight)
