# grade: rule=memory_tampered
"""Right, but works in place and leaves its input changed. The judge compares with its own copy."""

import torch


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
    x.sub_(x.float().nan_to_num(neginf=0).amax(dim=-1, keepdim=True).to(x.dtype) + 1)
