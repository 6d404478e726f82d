"""The kernel is on CUDA's default stream, as `kernel<<<grid, block>>>` of an extension is."""

from contextlib import nullcontext

import torch


def square(x, out):
    on_default = torch.cuda.stream(torch.cuda.default_stream()) if x.is_cuda else nullcontext()
    with on_default:
        torch.mul(x, x, out=out)
