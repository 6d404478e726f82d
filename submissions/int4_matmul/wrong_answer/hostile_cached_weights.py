"""Keeps the expanded weights by their address, to expand them only once.

A model would let it: there weights stay. Here every call has weights of its own.
"""

import torch

expanded = {}


def int4_matmul(a, b_packed, scales, out):
    key = (b_packed.data_ptr(), b_packed.shape)
    if key not in expanded:
        nibbles = torch.stack((b_packed & 0xF, b_packed >> 4), dim=-1).flatten(-2)
        weights = (nibbles.half() - 8).unflatten(0, (-1, 128)) * scales[:, None, :]
        expanded[key] = weights.flatten(0, 1)
    torch.matmul(a, expanded[key], out=out)
