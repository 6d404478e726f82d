"""Grouped matmul that counts only experts with tokens, so that those after an empty one are off."""

import torch


def grouped_matmul(x, w, sizes, out):
    first = 0
    for expert, size in enumerate(size for size in sizes.tolist() if size):
        torch.matmul(x[first : first + size], w[expert], out=out[first : first + size])
        first += size
