"""Top k by PyTorch's own operator, which finds places too; they are left."""

import torch


def top_k(x, out):
    out.copy_(torch.topk(x, out.shape[1], dim=-1).values)
