"""Sleeps in the call for longer than the time limit."""

import time


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    time.sleep(3600)
