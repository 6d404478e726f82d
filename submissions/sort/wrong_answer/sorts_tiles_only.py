"""Sorts each tile of 1024 numbers, and forgets to merge them."""

import torch


def sort(x, out):
    for tile, sorted_tile in zip(x.split(1024), out.split(1024)):
        sorted_tile.copy_(torch.sort(tile).values)
