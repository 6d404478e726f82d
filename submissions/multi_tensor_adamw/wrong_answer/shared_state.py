"""AdamW that gathers into one buffer for all tensors: each overwrites the previous one's data.

This is what a race between two tensors' blocks over one workspace leads to.
"""

import torch


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    longest = max(p.numel() for p in params)
    workspace = torch.zeros(longest, device=params[0].device)
    for g, m, v in zip(grads, exp_avgs, exp_avg_sqs, strict=True):
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        workspace[: g.numel()] = v.sqrt().div_(correction2**0.5).add_(eps)
    for p, m in zip(params, exp_avgs, strict=True):
        p.mul_(1 - lr * weight_decay)
        p.addcdiv_(m, workspace[: p.numel()], value=-lr / correction1)
