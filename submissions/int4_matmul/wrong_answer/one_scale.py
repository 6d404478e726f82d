"""Int4 matmul that uses the first group's scales for all groups."""

import torch


def int4_matmul(a, b_packed, scales, out):
    nibbles = torch.stack((b_packed & 0xF, b_packed >> 4), dim=-1).flatten(-2)
    torch.matmul(a, (nibbles.half() - 8) * scales[0], out=out)
