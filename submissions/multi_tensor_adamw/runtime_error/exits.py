"""Calls `sys.exit` at a step that it does not expect."""

import sys


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    sys.exit(f"no plan for step {step}")
