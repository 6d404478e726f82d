"""Grouped matmul in tiles of 32 rows, each with the expert of its first row."""

import torch

TILE = 32


def grouped_matmul(x, w, sizes, out):
    experts = torch.arange(len(sizes), device=x.device).repeat_interleave(sizes.long())
    for first in range(0, len(x), TILE):
        rows = slice(first, first + TILE)
        torch.matmul(x[rows], w[experts[first]], out=out[rows])
