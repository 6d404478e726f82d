"""LayerNorm in one pass: the mean of the squares less the square of the mean, which cancel."""

import torch


def layer_norm(x, weight, bias, out, eps):
    values = x.float()
    mean = values.mean(dim=-1, keepdim=True)
    variance = values.square().mean(dim=-1, keepdim=True) - mean.square()
    normal = (values - mean) * torch.rsqrt(variance.clamp(min=0) + eps)
    out.copy_(normal * weight.float() + bias.float())
