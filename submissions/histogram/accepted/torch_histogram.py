"""Histogram by PyTorch's `bincount`, which waits for the largest bin before it counts."""

import torch


def histogram(x, out):
    bins = out.numel()
    index = (x * bins).long().clamp(max=bins - 1)
    out.copy_(torch.bincount(index, minlength=bins))
