"""Int4 matmul that takes the high nibble for the even column."""

import torch


def int4_matmul(a, b_packed, scales, out):
    nibbles = torch.stack((b_packed >> 4, b_packed & 0xF), dim=-1).flatten(-2)
    weights = (nibbles.half() - 8) * scales.repeat_interleave(128, dim=0)
    torch.matmul(a, weights, out=out)
