"""AdamW on all tensors joined into one, compiled by torch.compile; scalars are fp32 tensors."""

import torch


@torch.compile(dynamic=True)
def _step(param, grad, avg, sq, lr, beta1, beta2, eps, weight_decay, correction1, correction2):
    avg = beta1 * avg + (1 - beta1) * grad
    sq = beta2 * sq + (1 - beta2) * grad * grad
    update = (avg / correction1) / ((sq / correction2).sqrt() + eps)
    return param * (1 - lr * weight_decay) - lr * update, avg, sq


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    lists = params, grads, exp_avgs, exp_avg_sqs
    scalars = lr, beta1, beta2, eps, weight_decay, 1 - beta1**step, 1 - beta2**step
    new = _step(
        *map(torch.cat, lists),
        *(torch.tensor(value, dtype=torch.float32, device=params[0].device) for value in scalars),
    )
    sizes = [len(param) for param in params]
    for joined, tensors in zip(new, (params, exp_avgs, exp_avg_sqs)):
        torch._foreach_copy_(tensors, list(joined.split(sizes)))
