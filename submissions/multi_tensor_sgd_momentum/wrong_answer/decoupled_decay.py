"""The step with AdamW's decay: it shrinks the parameter and never enters the buffer."""


def multi_tensor_sgd_momentum(params, grads, buffers, lr, momentum, weight_decay, nesterov):
    for p, g, b in zip(params, grads, buffers, strict=True):
        p.mul_(1 - lr * weight_decay)
        b.mul_(momentum).add_(g)
        p.sub_(g.add(b, alpha=momentum) if nesterov else b, alpha=lr)
