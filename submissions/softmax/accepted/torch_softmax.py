"""Softmax by PyTorch's own operator, straight into `out`."""

import torch


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
