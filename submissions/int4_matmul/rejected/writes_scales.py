# grade: rule=memory_tampered
"""Right, but it divides the caller's scales in place, as if they were its workspace."""

import torch


def int4_matmul(a, b_packed, scales, out):
    nibbles = torch.stack((b_packed & 0xF, b_packed >> 4), dim=-1).flatten(-2)
    weights = (nibbles.half() - 8).unflatten(0, (-1, 128)) * scales[:, None, :]
    torch.matmul(a, weights.flatten(0, 1), out=out)
    scales.mul_(0.5)
