"""Softmax as the textbook has it, compiled by torch.compile."""

import torch


@torch.compile(dynamic=True)
def _softmax(x):
    weights = torch.exp(x.float() - x.float().amax(dim=-1, keepdim=True))
    return (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)


def softmax(x, out):
    out.copy_(_softmax(x))
