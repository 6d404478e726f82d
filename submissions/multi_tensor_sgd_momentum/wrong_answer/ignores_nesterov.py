"""The step without Nesterov's variant: the parameter always moves by the buffer."""


def multi_tensor_sgd_momentum(params, grads, buffers, lr, momentum, weight_decay, nesterov):
    for p, g, b in zip(params, grads, buffers, strict=True):
        b.mul_(momentum).add_(g).add_(p, alpha=weight_decay)
        p.sub_(b, alpha=lr)
