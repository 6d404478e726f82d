"""Takes the norm first and unscales afterwards: the norm is that of the scaled gradients."""

import torch


def multi_tensor_scale_norm(grads, inv_scale, norm, overflow):
    norms = torch.stack(torch._foreach_norm(grads))
    norm.copy_(torch.linalg.vector_norm(norms))
    overflow.copy_(~norm.isfinite())
    torch._foreach_mul_(grads, inv_scale)
