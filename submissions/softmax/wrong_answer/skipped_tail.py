"""Softmax that handles whole tiles of 64 columns and forgets the tail."""

import torch

TILE = 64


def softmax(x, out):
    whole = x.shape[1] // TILE * TILE
    out[:, :whole] = torch.softmax(x[:, :whole], dim=-1)
