"""The entry is a class, not a function."""

import torch


class softmax:
    def __init__(self, x, out):
        torch.softmax(x, dim=-1, out=out)
