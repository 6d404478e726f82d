"""GELU operator by operator: nine kernels, and as many passes over memory. Right, and slow."""

import math

import torch


def gelu(x, out):
    x = x.float()
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    out.copy_(0.5 * x * (1 + torch.tanh(inner)))
