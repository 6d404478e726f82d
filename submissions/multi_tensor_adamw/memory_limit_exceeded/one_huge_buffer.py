"""Allocates one buffer of 1 TiB: refused with a MemoryError, or killed while it is filled."""


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    history = b"\1" * (1 << 40)
    params[0].fill_(history[step])
