"""One step of SGD with momentum on lists of tensors, and what PyTorch users write for it.

Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep
learning" (2013), with the learning rate outside the buffer, as PyTorch has it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

State = tuple[list[Tensor], list[Tensor]]


def reference(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
) -> State:
    """New `params` and `buffers`; the arguments are left as they are."""
    new_params, new_buffers = [], []
    for param, grad, buffer in zip(params, grads, buffers, strict=True):
        slope = grad + weight_decay * param
        new_buffer = momentum * buffer + slope
        update = slope + momentum * new_buffer if nesterov else new_buffer
        new_params.append(param - lr * update)
        new_buffers.append(new_buffer)
    return new_params, new_buffers


def eager(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
) -> State:
    """The yardstick: horizontal `torch._foreach` operations."""
    slopes = torch._foreach_add(grads, params, alpha=weight_decay)
    new_buffers = torch._foreach_mul(buffers, momentum)
    torch._foreach_add_(new_buffers, slopes)
    updates = new_buffers
    if nesterov:
        torch._foreach_add_(slopes, new_buffers, alpha=momentum)
        updates = slopes
    return list(torch._foreach_add(params, updates, alpha=-lr)), list(new_buffers)


def fused(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
) -> Callable[[], State]:
    """PyTorch's fused optimizer kernel. It works in place: on copies that are made beforehand."""
    state = [[tensor.clone() for tensor in group] for group in (params, buffers)]

    def call() -> State:
        torch._fused_sgd_(
            state[0],
            grads,
            state[1],
            weight_decay=weight_decay,
            momentum=momentum,
            lr=lr,
            dampening=0.0,
            nesterov=nesterov,
            maximize=False,
            is_first_step=False,
        )
        return state[0], state[1]

    return call


PREPARED = {"fused": fused}
"""Library calls that need a form of the inputs of their own: name → function of the inputs that
makes it, outside the time, and gives the call to time. None where the library has no such call."""
