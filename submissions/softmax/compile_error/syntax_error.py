"""A bracket that is never closed: a syntax error."""

import torch


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out
