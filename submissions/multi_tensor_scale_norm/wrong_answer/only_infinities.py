"""Looks for infinities only: a NaN compares unequal to everything, and is not found."""

import torch


def multi_tensor_scale_norm(grads, inv_scale, norm, overflow):
    torch._foreach_mul_(grads, inv_scale)
    norm.copy_(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))))
    overflow.copy_(norm == torch.inf)
