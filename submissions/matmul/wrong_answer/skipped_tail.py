"""Matmul that goes through k in whole steps of 32 and forgets the tail."""

import torch

STEP = 32


def matmul(a, b, out):
    whole = max(a.shape[1] // STEP * STEP, 1)
    torch.matmul(a[:, :whole], b[:whole], out=out)
