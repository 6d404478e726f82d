"""LayerNorm with `torch.var` and its default: the sum is divided by n - 1."""

import torch


def layer_norm(x, weight, bias, out, eps):
    values = x.float()
    variance, mean = torch.var_mean(values, dim=-1, keepdim=True)
    normal = (values - mean) * torch.rsqrt(variance + eps)
    out.copy_(normal * weight.float() + bias.float())
