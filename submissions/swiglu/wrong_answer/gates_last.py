"""SwiGLU that takes the second half for the gates, as some models have it."""

import torch


def swiglu(x, out):
    up, gate = x.chunk(2, dim=-1)
    torch.mul(torch.nn.functional.silu(gate), up, out=out)
