"""Int4 matmul that adds 1 to zero points, as files of GPTQ ask for."""

import torch


def unpack(packed):
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2).half()


def int4_matmul_zeros(a, b_packed, scales, zeros_packed, out):
    zeros = (unpack(zeros_packed) + 1).repeat_interleave(128, dim=0)
    weights = (unpack(b_packed) - zeros) * scales.repeat_interleave(128, dim=0)
    torch.matmul(a, weights, out=out)
