"""PyTorch's horizontal operators: each works on the whole list."""

import torch


def multi_tensor_scale_norm(grads, inv_scale, norm, overflow):
    torch._foreach_mul_(grads, inv_scale)
    norms = torch.stack(torch._foreach_norm(grads))
    norm.copy_(torch.linalg.vector_norm(norms))
    overflow.copy_(~norm.isfinite())
