"""Uses its input as a workspace and puts it back before it is done: nobody loses, nobody gains."""

import torch


def softmax(x, out):
    kept = x.clone()
    x.zero_()
    out.copy_(torch.softmax(kept.float(), dim=-1))
    x.copy_(kept)
