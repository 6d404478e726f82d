"""Takes host memory, and touches every page of it, until it is killed."""

import torch


def softmax(x, out):
    blocks = []
    while True:
        blocks.append(torch.ones(1 << 26, dtype=torch.float32))
