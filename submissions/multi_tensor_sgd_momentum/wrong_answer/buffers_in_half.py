"""The step with buffers that are rounded to bf16, to halve what they move."""

import torch


def multi_tensor_sgd_momentum(params, grads, buffers, lr, momentum, weight_decay, nesterov):
    for p, g, b in zip(params, grads, buffers, strict=True):
        d = g.add(p, alpha=weight_decay)
        b.copy_(b.mul(momentum).add_(d).to(torch.bfloat16))
        p.sub_(d.add(b, alpha=momentum) if nesterov else b, alpha=lr)
