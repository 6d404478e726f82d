"""The exact GELU, which PyTorch gives by default: it differs by up to 0.0005."""

import torch


def gelu(x, out):
    torch.ops.aten.gelu.out(x, out=out)
