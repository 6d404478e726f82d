"""Leaves the gradients scaled if one overflowed, since the step will be skipped anyway."""

import torch


def multi_tensor_scale_norm(grads, inv_scale, norm, overflow):
    norms = torch.stack(torch._foreach_norm(grads)) * inv_scale
    norm.copy_(torch.linalg.vector_norm(norms))
    overflow.copy_(~norm.isfinite())
    if not overflow.item():
        torch._foreach_mul_(grads, inv_scale)
