"""Takes the nearest edge instead of the one below."""

import torch


def histogram(x, out):
    bins = out.numel()
    index = (x * bins).round().long().clamp(max=bins - 1)
    out.copy_(torch.bincount(index, minlength=bins))
