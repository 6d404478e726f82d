"""Matmul with 2:4 sparse weights that goes through k in steps of 32, and forgets the tail."""

import torch

STEP = 32


def sparse24_matmul(x, w, out):
    whole = x.shape[1] // STEP * STEP
    torch.matmul(x[:, :whole], w[:, :whole].T, out=out)
