"""The step by PyTorch's horizontal operators: each works on a whole list."""

import torch


def multi_tensor_sgd_momentum(params, grads, buffers, lr, momentum, weight_decay, nesterov):
    slopes = torch._foreach_add(grads, params, alpha=weight_decay)
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, slopes)
    updates = buffers
    if nesterov:
        torch._foreach_add_(slopes, buffers, alpha=momentum)
        updates = slopes
    torch._foreach_add_(params, updates, alpha=-lr)
