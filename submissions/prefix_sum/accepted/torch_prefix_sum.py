"""Prefix sum by PyTorch's own operator, straight into `out`."""

import torch


def prefix_sum(x, out):
    torch.cumsum(x, 0, out=out)
