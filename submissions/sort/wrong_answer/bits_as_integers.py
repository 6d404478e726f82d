"""Sorts the bits as signed integers: negative numbers come first, but in the wrong order."""

import torch


def sort(x, out):
    out.copy_(torch.sort(x.view(torch.int32)).values.view(torch.float32))
