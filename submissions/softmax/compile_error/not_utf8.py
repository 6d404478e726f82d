"""Written in Latin-1 (café): not UTF-8, so it cannot be decoded."""

import torch


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
