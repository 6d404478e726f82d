"""Uses its input as a workspace and restores it before it returns, which is harmless."""

import torch


def softmax(x, out):
    kept = x.clone()
    x.zero_()
    out.copy_(torch.softmax(kept.float(), dim=-1))
    x.copy_(kept)
