"""Honest steps of SGD, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grader.numerics import round_to

TAIL = 4

New = tuple[Tensor, Tensor]
"""New values of one parameter and its buffer."""
State = tuple[list[Tensor], list[Tensor]]
Step = Callable[..., State]
Mutant = Callable[..., State | None]


@dataclass(frozen=True)
class Scalars:
    """The scalars of a step."""

    lr: float
    momentum: float
    decay: float
    nesterov: bool


Update = Callable[[Tensor, Tensor, Tensor, Scalars], New]
"""Of one parameter, its gradient and its buffer."""


def _step(update: Update, narrow: bool = False) -> Step:
    """One step with the same arithmetic for every tensor. With `narrow`, the scalars are fp32
    before anything is computed from them, as a kernel's arguments may be."""

    def step(**inputs: Any) -> State:
        scalars = [inputs[name] for name in ("lr", "momentum", "weight_decay")]
        if narrow:
            scalars = [float(torch.tensor(value, dtype=torch.float32)) for value in scalars]
        rest = Scalars(*scalars, inputs["nesterov"])
        lists = zip(inputs["params"], inputs["grads"], inputs["buffers"], strict=True)
        new = [update(*tensors, rest) for tensors in lists]
        return [param for param, _ in new], [buffer for _, buffer in new]

    return step


def _textbook(param: Tensor, grad: Tensor, buffer: Tensor, s: Scalars) -> New:
    slope = grad + s.decay * param
    new = s.momentum * buffer + slope
    return param - s.lr * (slope + s.momentum * new if s.nesterov else new), new


def _size(param: Tensor, grad: Tensor, buffer: Tensor, s: Scalars) -> New:
    """What rounding errors are relative to: the sums of the terms' absolute values."""
    slope = grad.abs() + s.decay * param.abs()
    new = s.momentum * buffer.abs() + slope
    return param.abs() + s.lr * (slope + s.momentum * new if s.nesterov else new), new


magnitude = _step(_size)


# --- honest


def _folded(param: Tensor, grad: Tensor, buffer: Tensor, s: Scalars) -> New:
    """Everything in terms of the old state."""
    new = s.momentum * buffer + s.decay * param + grad
    if not s.nesterov:
        return param - s.lr * new, new
    return param * (1 - s.lr * s.decay) - s.lr * grad - (s.lr * s.momentum) * new, new


def _rounded_once(param: Tensor, grad: Tensor, buffer: Tensor, s: Scalars) -> New:
    new_param, new = _textbook(param.double(), grad.double(), buffer.double(), s)
    return new_param.float(), new.float()


HONEST: dict[str, Step] = {
    "textbook": _step(_textbook),
    "textbook, fp32 scalars": _step(_textbook, narrow=True),
    "decay folded into the parameter": _step(_folded),
    "decay folded into the parameter, fp32 scalars": _step(_folded, narrow=True),
    "rounded once": _step(_rounded_once),
}


# --- broken


def _where(differs: Callable[[dict[str, Any]], bool], mutant: Step) -> Mutant:
    """The mutant on inputs for which it computes something else; elsewhere it proves nothing."""
    return lambda **inputs: mutant(**inputs) if differs(inputs) else None


def _rounded(name: str) -> Step:
    """Gradients and buffers rounded to a coarse format on the way in."""

    def update(param: Tensor, grad: Tensor, buffer: Tensor, s: Scalars) -> New:
        return _textbook(param, round_to(grad, name), round_to(buffer, name), s)

    return _step(update)


def _decoupled(param: Tensor, grad: Tensor, buffer: Tensor, s: Scalars) -> New:
    """The decay shrinks the parameter and never enters the buffer, as in AdamW."""
    return _textbook(param * (1 - s.lr * s.decay), grad, buffer, replace(s, decay=0.0))


def _dampened(param: Tensor, grad: Tensor, buffer: Tensor, s: Scalars) -> New:
    """The gradient enters the buffer with weight 1 - momentum, as in Adam."""
    slope = grad + s.decay * param
    new = s.momentum * buffer + (1 - s.momentum) * slope
    return param - s.lr * (slope + s.momentum * new if s.nesterov else new), new


def _rate_inside(param: Tensor, grad: Tensor, buffer: Tensor, s: Scalars) -> New:
    """The learning rate is in the buffer, as in the paper."""
    slope = grad + s.decay * param
    new = s.momentum * buffer + s.lr * slope
    return param - (s.lr * slope + s.momentum * new if s.nesterov else new), new


def _old_buffer(param: Tensor, grad: Tensor, buffer: Tensor, s: Scalars) -> New:
    """The parameter moves by the buffer of the last step."""
    _, new = _textbook(param, grad, buffer, s)
    slope = grad + s.decay * param
    return param - s.lr * (slope + s.momentum * buffer if s.nesterov else buffer), new


def _without_last_elements(**inputs: Any) -> State:
    """The last 4 elements of each tensor that is longer are left as they were: a lost tail."""
    after = _step(_textbook)(**inputs)
    for new, name in zip(after, ("params", "buffers"), strict=True):
        for tensor, old in zip(new, inputs[name], strict=True):
            if len(tensor) > TAIL:
                tensor[-TAIL:] = old[-TAIL:]
    return after


def _decays(inputs: dict[str, Any], least: float = 1e-3) -> bool:
    return bool(inputs["weight_decay"] >= least)


MUTANTS: dict[str, Mutant] = {
    "state in fp16": _rounded("fp16"),
    "state in bf16": _rounded("bf16"),
    "state in TF32": _rounded("tf32"),
    "decoupled weight decay": _where(_decays, _step(_decoupled)),
    "dampened gradient": _step(_dampened),
    "learning rate in the buffer": _step(_rate_inside),
    "buffer of the last step": _step(_old_buffer),
    "last elements left out": _where(
        lambda inputs: any(len(param) > TAIL for param in inputs["params"]),
        _without_last_elements,
    ),
}
