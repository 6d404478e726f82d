"""Honest AdamW steps, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grader.numerics import round_to

TAIL = 4
LATE_STEP = 10_000
"""From here on the bias corrections are 1 for the betas that the cases use."""
SMALL_MOMENT = 1e-4
"""Second moments from which on eps is lost in rounding, in the root or beside it."""

State = tuple[list[Tensor], list[Tensor], list[Tensor]]
Step = Callable[..., State]


@dataclass(frozen=True)
class Scalars:
    """The step's scalars, each a Python float or an fp32 tensor of no dimension."""

    lr: float | Tensor
    beta1: float | Tensor
    beta2: float | Tensor
    eps: float | Tensor
    weight_decay: float | Tensor
    step: int

    @property
    def correction1(self) -> float | Tensor:
        """Bias correction of the first moment."""
        return 1 - self.beta1**self.step

    @property
    def correction2(self) -> float | Tensor:
        """Bias correction of the second moment."""
        return 1 - self.beta2**self.step


Update = Callable[[Tensor, Tensor, Tensor, Tensor, Scalars], tuple[Tensor, Tensor, Tensor]]
"""New parameter, first and second moment of one tensor, from the old ones and the gradient."""


def magnitude(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> State:
    """What the rounding errors of each output are relative to.

    Of a moment, the sum of both terms: a narrowed ``1 - beta`` is off by a rounding of 1. Of a
    parameter, its own magnitude and that of its update. A bias correction ``1 - beta**t`` is off by
    ``(1 + t·beta**t) / (1 - beta**t)`` roundings, by the condition of the subtraction and of the
    power.
    """
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    roundings1 = (1 + step * beta1**step) / correction1
    roundings2 = (1 + step * beta2**step) / correction2
    new_params, new_avgs, new_sqs = [], [], []
    for param, grad, avg, sq in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        avg_size = avg.abs() + grad.abs()
        sq_size = sq + grad * grad
        new_sq = beta2 * sq + (1 - beta2) * grad * grad
        denominator = (new_sq / correction2).sqrt() + eps
        # Half the relative error of the second moment enters by the root.
        relative_sq = torch.where(new_sq > 0, sq_size / new_sq, 0.0)
        update = avg_size / correction1 / denominator
        new_params.append(param.abs() + lr * update * (1 + roundings1 + roundings2 + relative_sq))
        new_avgs.append(avg_size)
        new_sqs.append(sq_size)
    return new_params, new_avgs, new_sqs


def _step(update: Update, narrow: bool = False) -> Step:
    """One step with the same arithmetic for every tensor. With `narrow`, the scalars are fp32
    before anything is computed from them, as a kernel's arguments may be."""

    def step(
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        step: int,
    ) -> State:
        values: list[float | Tensor] = [lr, beta1, beta2, eps, weight_decay]
        if narrow:
            values = [torch.tensor(value, device=params[0].device).float() for value in values]
        scalars = Scalars(*values, step)
        tensors = zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)
        new = [update(*tensor, scalars) for tensor in tensors]
        return [n[0] for n in new], [n[1] for n in new], [n[2] for n in new]

    return step


def _moments(grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars) -> tuple[Tensor, Tensor]:
    return s.beta1 * avg + (1 - s.beta1) * grad, s.beta2 * sq + (1 - s.beta2) * grad * grad


def _lerp(grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars) -> tuple[Tensor, Tensor]:
    """Each moment moved toward its new value."""
    return avg + (1 - s.beta1) * (grad - avg), sq + (1 - s.beta2) * (grad * grad - sq)


def _textbook(
    param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
) -> tuple[Tensor, ...]:
    avg, sq = _moments(grad, avg, sq, s)
    update = (avg / s.correction1) / ((sq / s.correction2).sqrt() + s.eps)
    return param - s.lr * s.weight_decay * param - s.lr * update, avg, sq


def _decay_first(
    param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
) -> tuple[Tensor, ...]:
    avg, sq = _moments(grad, avg, sq, s)
    param = param * (1 - s.lr * s.weight_decay)
    return param - s.lr * (avg / s.correction1) / ((sq / s.correction2).sqrt() + s.eps), avg, sq


def _folded_into_step(
    param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
) -> tuple[Tensor, ...]:
    """PyTorch's folding: the first correction in the step size, the second outside the root."""
    avg, sq = _moments(grad, avg, sq, s)
    denominator = sq.sqrt() / s.correction2**0.5 + s.eps
    return param * (1 - s.lr * s.weight_decay) - s.lr / s.correction1 * (avg / denominator), avg, sq


def _folded_into_eps(
    param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
) -> tuple[Tensor, ...]:
    """Kingma and Ba's folding: both corrections in the step size, and eps scaled."""
    avg, sq = _moments(grad, avg, sq, s)
    root = s.correction2**0.5
    update = avg / (sq.sqrt() + s.eps * root)
    return param * (1 - s.lr * s.weight_decay) - s.lr * root / s.correction1 * update, avg, sq


def _multiplied_corrections(
    param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
) -> tuple[Tensor, ...]:
    """Reciprocals of the corrections, and of the denominator."""
    avg, sq = _lerp(grad, avg, sq, s)
    denominator = (sq * (1 / s.correction2)).sqrt() + s.eps
    update = avg * (1 / s.correction1) * (1 / denominator)
    return param - s.lr * (update + s.weight_decay * param), avg, sq


def _rounded_once(
    param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
) -> tuple[Tensor, ...]:
    exact = _textbook(param.double(), grad.double(), avg.double(), sq.double(), s)
    return tuple(value.float() for value in exact)


_FORMS: dict[str, Update] = {
    "textbook": _textbook,
    "decay first": _decay_first,
    "corrections folded into the step": _folded_into_step,
    "corrections folded into eps": _folded_into_eps,
    "reciprocals and lerp": _multiplied_corrections,
}

HONEST: dict[str, Step] = {
    **{name: _step(update) for name, update in _FORMS.items()},
    **{f"{name}, fp32 scalars": _step(update, narrow=True) for name, update in _FORMS.items()},
    "rounded once": _step(_rounded_once),
}


def _rounded(name: str) -> Update:
    """Gradients and moments rounded to a coarse format on the way in."""

    def update(
        param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
    ) -> tuple[Tensor, ...]:
        return _textbook(param, *(round_to(value, name) for value in (grad, avg, sq)), s)

    return update


def _rounded_update(name: str) -> Update:
    """Only what is subtracted from the parameter is rounded."""

    def update(
        param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
    ) -> tuple[Tensor, ...]:
        _, avg, sq = _textbook(param, grad, avg, sq, s)
        step = (avg / s.correction1) / ((sq / s.correction2).sqrt() + s.eps)
        decayed = param - s.lr * s.weight_decay * param
        return decayed - s.lr * round_to(step, name), avg, sq

    return update


def _no_correction(
    param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
) -> tuple[Tensor, ...]:
    avg, sq = _moments(grad, avg, sq, s)
    return param * (1 - s.lr * s.weight_decay) - s.lr * avg / (sq.sqrt() + s.eps), avg, sq


def _coupled_decay(
    param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
) -> tuple[Tensor, ...]:
    """Adam with L2 regularisation."""
    grad = grad + s.weight_decay * param
    avg, sq = _moments(grad, avg, sq, s)
    update = (avg / s.correction1) / ((sq / s.correction2).sqrt() + s.eps)
    return param - s.lr * update, avg, sq


def _eps_in_the_root(
    param: Tensor, grad: Tensor, avg: Tensor, sq: Tensor, s: Scalars
) -> tuple[Tensor, ...]:
    avg, sq = _moments(grad, avg, sq, s)
    update = (avg / s.correction1) / (sq / s.correction2 + s.eps).sqrt()
    return param * (1 - s.lr * s.weight_decay) - s.lr * update, avg, sq


def _step_off_by_one(**inputs: Any) -> State:
    return _step(_textbook)(**inputs | {"step": inputs["step"] + 1})


def _without_last_elements(**inputs: Any) -> State:
    """The last 4 elements of each tensor that is longer are left as they were: a lost tail."""
    after = _step(_textbook)(**inputs)
    for new, name in zip(after, ("params", "exp_avgs", "exp_avg_sqs"), strict=True):
        for tensor, old in zip(new, inputs[name], strict=True):
            if len(tensor) > TAIL:
                tensor[-TAIL:] = old[-TAIL:]
    return after


def _where(differs: Callable[[dict[str, Any]], bool], mutant: Step) -> Callable[..., State | None]:
    """The mutant on inputs for which it computes something else; elsewhere it proves nothing."""
    return lambda **inputs: mutant(**inputs) if differs(inputs) else None


def _is_corrected(inputs: dict[str, Any]) -> bool:
    return bool(inputs["step"] < LATE_STEP)


def _has_small_moments(inputs: dict[str, Any]) -> bool:
    return min(float(sq.min()) for sq in inputs["exp_avg_sqs"]) < SMALL_MOMENT


def _has_tails(inputs: dict[str, Any]) -> bool:
    return any(len(param) > TAIL for param in inputs["params"])


def _has_fractions(inputs: dict[str, Any]) -> bool:
    """In the first step every update is 1 or -1."""
    return bool(inputs["step"] > 1)


MUTANTS: dict[str, Callable[..., State | None]] = {
    "state in fp16": _step(_rounded("fp16")),
    "state in bf16": _step(_rounded("bf16")),
    "state in TF32": _step(_rounded("tf32")),
    "update in fp16": _where(_has_fractions, _step(_rounded_update("fp16"))),
    "update in bf16": _where(_has_fractions, _step(_rounded_update("bf16"))),
    "no bias correction": _where(_is_corrected, _step(_no_correction)),
    "coupled weight decay": _where(
        lambda inputs: inputs["weight_decay"] > 0, _step(_coupled_decay)
    ),
    "eps inside the root": _where(_has_small_moments, _step(_eps_in_the_root)),
    "step off by one": _where(_is_corrected, _step_off_by_one),
    "last elements left out": _where(_has_tails, _without_last_elements),
}
