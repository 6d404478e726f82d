"""Int4 matmul: unpacking and scaling compiled by torch.compile, then PyTorch's fp16 product."""

import torch

GROUP = 128


@torch.compile(dynamic=True)
def _dequantise(b_packed, scales):
    codes = torch.stack((b_packed & 0xF, b_packed >> 4), dim=-1).flatten(-2).half() - 8
    return codes * scales.repeat_interleave(GROUP, dim=0)


def int4_matmul(a, b_packed, scales, out):
    torch.matmul(a, _dequantise(b_packed, scales), out=out)
