"""Square by a product of PyTorch, straight into `out`."""

import torch


def square(x, out):
    torch.mul(x, x, out=out)
