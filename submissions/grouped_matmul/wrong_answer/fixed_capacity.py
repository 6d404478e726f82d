"""Grouped matmul with room for twice the average group, as in some models: the rest is dropped."""

import torch


def grouped_matmul(x, w, sizes, out):
    capacity = -(-2 * len(x) // len(sizes))
    out.zero_()
    first = 0
    for expert, size in enumerate(sizes.tolist()):
        rows = slice(first, first + min(size, capacity))
        torch.matmul(x[rows], w[expert], out=out[rows])
        first += size
