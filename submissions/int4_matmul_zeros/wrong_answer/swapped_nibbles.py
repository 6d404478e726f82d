"""Int4 matmul that takes the high nibble for the even column, of codes and zero points alike."""

import torch


def unpack(packed):
    return torch.stack((packed >> 4, packed & 0xF), dim=-1).flatten(-2).half()


def int4_matmul_zeros(a, b_packed, scales, zeros_packed, out):
    zeros = unpack(zeros_packed).repeat_interleave(128, dim=0)
    weights = (unpack(b_packed) - zeros) * scales.repeat_interleave(128, dim=0)
    torch.matmul(a, weights, out=out)
