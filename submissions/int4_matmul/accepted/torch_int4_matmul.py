"""Int4 matmul in PyTorch: unpack the weights to fp16, scale them, and multiply."""

import torch

GROUP = 128


def int4_matmul(a, b_packed, scales, out):
    nibbles = torch.stack((b_packed & 0xF, b_packed >> 4), dim=-1).flatten(-2)
    weights = (nibbles.half() - 8).unflatten(0, (-1, GROUP)) * scales[:, None, :]
    torch.matmul(a, weights.flatten(0, 1), out=out)
