"""Adds to what `out` holds when the call begins, which is not zero."""

import torch


def histogram(x, out):
    bins = out.numel()
    index = (x * bins).long().clamp(max=bins - 1)
    out.index_add_(0, index, torch.ones_like(index, dtype=out.dtype))
