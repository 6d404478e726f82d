"""Adam with L2 regularization: the decay is added to the gradient instead of the weights."""


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        g = g + weight_decay * p
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = v.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
        p.addcdiv_(m, root, value=-lr / (1 - beta1**step))
