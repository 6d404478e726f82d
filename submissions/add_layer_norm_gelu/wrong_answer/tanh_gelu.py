"""The chain with GELU's approximation by tanh, as GPT-2 has it."""

from torch.nn.functional import gelu, layer_norm


def add_layer_norm_gelu(x, residual, weight, bias, out, eps):
    normal = layer_norm(x + residual, weight.shape, weight, bias, eps)
    out.copy_(gelu(normal, approximate="tanh"))
