"""AdamW that counts steps from zero where the problem counts from one."""


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    correction1, correction2 = 1 - beta1 ** (step + 1), 1 - beta2 ** (step + 1)
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        denominator = v.sqrt().div_(correction2**0.5).add_(eps)
        p.mul_(1 - lr * weight_decay).addcdiv_(m, denominator, value=-lr / correction1)
