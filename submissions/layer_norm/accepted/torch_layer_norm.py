"""LayerNorm by PyTorch's own operator."""

import torch


def layer_norm(x, weight, bias, out, eps):
    out.copy_(torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps))
