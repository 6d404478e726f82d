"""Allocates device memory until none is left."""
# grade: device=cuda

import torch


def softmax(x, out):
    blocks = []
    while True:
        blocks.append(torch.ones(1 << 28, dtype=torch.float32, device=x.device))
