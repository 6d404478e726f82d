"""Writes out every product before it sums them, for ever more copies of the rows."""

import torch


def int4_matmul(a, b_packed, scales, out):
    nibbles = torch.stack((b_packed & 0xF, b_packed >> 4), dim=-1).flatten(-2)
    weights = ((nibbles.half() - 8) * scales.repeat_interleave(128, dim=0)).float().cpu()
    rows = a.float().cpu()
    products = []
    while True:
        products.append(rows[:, :, None] * weights)
        rows = rows.repeat(2, 1)
