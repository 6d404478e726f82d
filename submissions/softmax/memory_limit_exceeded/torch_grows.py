"""Allocates and fills host memory until it is killed."""

import torch


def softmax(x, out):
    blocks = []
    while True:
        blocks.append(torch.ones(1 << 28, dtype=torch.float32))
