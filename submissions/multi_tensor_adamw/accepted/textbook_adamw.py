"""AdamW as the paper has it, one tensor after the other, in PyTorch."""


def multi_tensor_adamw(
    params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step
):
    for param, grad, avg, sq in zip(params, grads, exp_avgs, exp_avg_sqs):
        avg.copy_(beta1 * avg + (1 - beta1) * grad)
        sq.copy_(beta2 * sq + (1 - beta2) * grad * grad)
        corrected_avg = avg / (1 - beta1**step)
        corrected_sq = sq / (1 - beta2**step)
        update = corrected_avg / (corrected_sq.sqrt() + eps)
        param.copy_(param - lr * (update + weight_decay * param))
