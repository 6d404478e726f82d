"""Fills up to a power of two with zeros, which take the places of numbers."""

import torch


def sort(x, out):
    n = x.numel()
    missing = (1 << (n - 1).bit_length()) - n
    out.copy_(torch.sort(torch.nn.functional.pad(x, (0, missing))).values[:n])
