"""Softmax in PyTorch in one pass over blocks of columns: the sum is rescaled when the maximum grows."""

import torch

BLOCK = 4096


def softmax(x, out):
    highest = torch.full_like(x[:, :1], -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(highest)
    for block in x.float().split(BLOCK, dim=1):
        grown = torch.maximum(highest, block.amax(dim=1, keepdim=True))
        # In a row without finite logits so far, differences are NaN and count as 0.
        total *= torch.exp(highest - grown).nan_to_num_(nan=0.0)
        total += torch.exp(block - grown).nan_to_num_(nan=0.0).sum(dim=1, keepdim=True)
        highest = grown
    out.copy_(torch.exp(x.float() - highest) / total)
