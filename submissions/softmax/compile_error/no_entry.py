"""Defines `soft_max`, but the problem's entry is `softmax`."""

import torch


def soft_max(x, out):
    torch.softmax(x, dim=-1, out=out)
