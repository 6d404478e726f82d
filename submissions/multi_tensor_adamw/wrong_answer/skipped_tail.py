"""AdamW in whole blocks of 256 elements: the rest at the end of a tensor is never updated."""


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    for tensors in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        whole = tensors[0].numel() // 256 * 256
        p, g, m, v = (tensor[:whole] for tensor in tensors)
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        denominator = v.sqrt().div_(correction2**0.5).add_(eps)
        p.mul_(1 - lr * weight_decay).addcdiv_(m, denominator, value=-lr / correction1)
