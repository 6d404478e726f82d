"""Softmax that returns its output instead of filling `out`; the copy into `out` is timed too."""

import torch


def softmax(x):
    return torch.softmax(x, dim=-1)
