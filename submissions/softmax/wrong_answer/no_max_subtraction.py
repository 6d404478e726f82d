"""Softmax without max-subtraction: overflows on large logits."""

import torch


def softmax(x, out):
    e = torch.exp(x.float())
    out.copy_(e / e.sum(dim=-1, keepdim=True))
