# grade: rule=memory_tampered
"""Adds the residual to x in place, as inference code does to save memory. Here x is an input, and the
judge compares it with its own copy.
"""

from torch.nn.functional import gelu, layer_norm


def add_layer_norm_gelu(x, residual, weight, bias, out, eps):
    x.add_(residual)
    out.copy_(gelu(layer_norm(x, weight.shape, weight, bias, eps)))
