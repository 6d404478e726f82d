"""AdamW that leaves out the last tensor of the list."""

import torch


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    params, grads = params[:-1], grads[:-1]
    exp_avgs, exp_avg_sqs = exp_avgs[:-1], exp_avg_sqs[:-1]
    if not params:
        return
    torch._foreach_mul_(params, 1 - lr * weight_decay)
    torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
    torch._foreach_mul_(exp_avg_sqs, beta2)
    torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
    roots = torch._foreach_sqrt(exp_avg_sqs)
    torch._foreach_div_(roots, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(roots, eps)
    torch._foreach_addcdiv_(params, exp_avgs, roots, -lr / (1 - beta1**step))
