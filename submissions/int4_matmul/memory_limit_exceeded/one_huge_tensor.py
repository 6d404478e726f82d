"""Allocates and fills one tensor of 16 TiB: refused at once, or killed on the way."""

import torch


def int4_matmul(a, b_packed, scales, out):
    products = torch.ones(1 << 42, dtype=torch.float32)
    out.copy_(products[: out.numel()].view(out.shape))
