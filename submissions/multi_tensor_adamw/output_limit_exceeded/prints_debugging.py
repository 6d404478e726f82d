"""Prints every element of every state, over and over."""


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    line = " ".join(str(value) for value in params[0][:1000].tolist())
    while True:
        print((line + "\n") * (1 + (1 << 16) // (len(line) + 1)))
