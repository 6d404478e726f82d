"""The tanh by two exponentials: infinity over infinity, which is NaN, for large x."""

import math

import torch


def gelu(x, out):
    x = x.float()
    up = torch.exp(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    down = 1 / up
    out.copy_(0.5 * x * (1 + (up - down) / (up + down)))
