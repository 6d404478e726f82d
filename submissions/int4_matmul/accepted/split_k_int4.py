"""Int4 matmul in PyTorch with split-K: fp32 sums over ranges of k, added in sequence."""

import torch

GROUP = 128
GROUPS_EACH = 8


def int4_matmul(a, b_packed, scales, out):
    total = torch.zeros(out.shape, dtype=torch.float32, device=a.device)
    for first in range(0, scales.shape[0], GROUPS_EACH):
        groups = slice(first, first + GROUPS_EACH)
        rows = slice(first * GROUP, (first + GROUPS_EACH) * GROUP)
        packed = b_packed[rows]
        codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2).float() - 8
        weights = codes.unflatten(0, (-1, GROUP)) * scales[groups, None, :].float()
        total += a[:, rows].float() @ weights.flatten(0, 1)
    out.copy_(total)
