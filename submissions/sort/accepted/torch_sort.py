"""Sort by PyTorch's own operator, which sorts places too; they are left."""

import torch


def sort(x, out):
    out.copy_(torch.sort(x).values)
