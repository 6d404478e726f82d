"""One AdamW step on lists of tensors, and what PyTorch users write for it.

Decoupled weight decay: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

State = tuple[list[Tensor], list[Tensor], list[Tensor]]


def reference(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> State:
    """New `params`, `exp_avgs` and `exp_avg_sqs`; the arguments are left as they are."""
    correction1 = 1 - beta1**step
    correction2 = 1 - beta2**step
    new_params, new_avgs, new_sqs = [], [], []
    for param, grad, avg, sq in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        new_avg = beta1 * avg + (1 - beta1) * grad
        new_sq = beta2 * sq + (1 - beta2) * grad * grad
        update = (new_avg / correction1) / ((new_sq / correction2).sqrt() + eps)
        new_params.append(param * (1 - lr * weight_decay) - lr * update)
        new_avgs.append(new_avg)
        new_sqs.append(new_sq)
    return new_params, new_avgs, new_sqs


def eager(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> State:
    """The yardstick: horizontal `torch._foreach` operations."""
    correction1 = 1 - beta1**step
    correction2 = 1 - beta2**step
    new_avgs = torch._foreach_lerp(exp_avgs, grads, 1 - beta1)
    new_sqs = torch._foreach_mul(exp_avg_sqs, beta2)
    torch._foreach_addcmul_(new_sqs, grads, grads, 1 - beta2)
    denominators = torch._foreach_sqrt(new_sqs)
    torch._foreach_div_(denominators, correction2**0.5)
    torch._foreach_add_(denominators, eps)
    new_params = torch._foreach_mul(params, 1 - lr * weight_decay)
    torch._foreach_addcdiv_(new_params, new_avgs, denominators, -lr / correction1)
    return list(new_params), list(new_avgs), list(new_sqs)


def fused(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> Callable[[], State]:
    """PyTorch's fused optimizer kernel. It works in place: on copies that are made beforehand."""
    state = [[tensor.clone() for tensor in group] for group in (params, exp_avgs, exp_avg_sqs)]
    steps = [torch.tensor(float(step), device=params[0].device)] * len(params)

    def call() -> State:
        torch._fused_adamw_(
            state[0],
            grads,
            state[1],
            state[2],
            [],
            steps,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )
        return state[0], state[1], state[2]

    return call


PREPARED = {"fused": fused}
"""Library calls that need a form of the inputs of their own: name → function of the inputs that
makes it, outside the time, and gives the call to time. None where the library has no such call."""
