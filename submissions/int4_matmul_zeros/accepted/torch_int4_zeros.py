"""Int4 matmul with zero points by PyTorch: a group at a time, zero points after the sum."""

import torch

GROUP = 128


def unpack(packed):
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2).float()


def int4_matmul_zeros(a, b_packed, scales, zeros_packed, out):
    total = torch.zeros(out.shape, device=a.device)
    zeros = unpack(zeros_packed)
    for group in range(len(scales)):
        ks = slice(group * GROUP, (group + 1) * GROUP)
        part = a[:, ks].float()
        product = part @ unpack(b_packed[ks]) - part.sum(1, keepdim=True) * zeros[group]
        total += product * scales[group]
    out.copy_(total)
