"""The step in Triton, with a launch for every tensor: fast for large ones only."""

import triton
import triton.language as tl


@triton.jit
def _step(
    param_at,
    grad_at,
    buffer_at,
    lr,
    momentum,
    decay,
    length,
    NESTEROV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < length
    param = tl.load(param_at + at, mask=inside)
    slope = tl.load(grad_at + at, mask=inside) + decay * param
    buffer = momentum * tl.load(buffer_at + at, mask=inside) + slope
    update = slope + momentum * buffer if NESTEROV else buffer
    tl.store(param_at + at, param - lr * update, mask=inside)
    tl.store(buffer_at + at, buffer, mask=inside)


def multi_tensor_sgd_momentum(params, grads, buffers, lr, momentum, weight_decay, nesterov):
    # The interpreter pays per program, not per element.
    block = 1 << 15 if params[0].device.type == "cpu" else 2048
    for param, grad, buffer in zip(params, grads, buffers, strict=True):
        length = param.numel()
        _step[(triton.cdiv(length, block),)](
            param, grad, buffer, lr, momentum, weight_decay, length,
            NESTEROV=nesterov, BLOCK=block,
        )  # fmt: skip
