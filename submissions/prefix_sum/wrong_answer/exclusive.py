"""The exclusive sum: each element has the sum of those before it, without itself."""

import torch


def prefix_sum(x, out):
    torch.cumsum(x, 0, out=out)
    out.sub_(x)
