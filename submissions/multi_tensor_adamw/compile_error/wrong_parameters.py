"""The entry lacks the parameter `step`."""

import torch


def multi_tensor_adamw(params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay):
    torch._foreach_add_(params, grads, alpha=-lr)
