"""Honest AdamW steps, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grader.numerics import round_to

TAIL = 4
LATE_STEP = 10_000
"""From here on the bias corrections are 1 for the betas that the cases use."""
SMALL_MOMENT = 1e-4
"""Second moments from which on eps is lost in rounding, in the root or beside it."""

LISTS = {"param": "params", "grad": "grads", "avg": "exp_avgs", "sq": "exp_avg_sqs"}
"""Field of `Parameter` → the argument, a list, that has it."""
SCALARS = ("lr", "beta1", "beta2", "eps", "weight_decay")

New = tuple[Tensor, Tensor, Tensor]
"""New values of one parameter, its first moment and its second moment."""
State = tuple[list[Tensor], list[Tensor], list[Tensor]]
Step = Callable[..., State]


@dataclass(frozen=True)
class Parameter:
    """One parameter with its gradient and moments, and the step's scalars, each a Python float or
    an fp32 tensor of no dimension."""

    param: Tensor
    grad: Tensor
    avg: Tensor
    sq: Tensor
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

    @property
    def decay(self) -> float | Tensor:
        """The parameter's factor in a step."""
        return 1 - self.lr * self.weight_decay

    def map(self, function: Callable[[Tensor], Tensor], *names: str) -> Parameter:
        """A copy whose fields `names` went through `function`."""
        return replace(self, **{name: function(getattr(self, name)) for name in names})


Update = Callable[[Parameter], New]


def _parameters(inputs: dict[str, Any], narrow: bool = False) -> Iterator[Parameter]:
    """The parameters, one by one. With `narrow`, the scalars are fp32 before anything is computed
    from them, as a kernel's arguments may be."""
    scalars = {name: inputs[name] for name in SCALARS}
    if narrow:
        device = inputs["params"][0].device
        scalars = {n: torch.tensor(value, device=device).float() for n, value in scalars.items()}
    for tensors in zip(*(inputs[name] for name in LISTS.values()), strict=True):
        yield Parameter(*tensors, **scalars, step=inputs["step"])


def _lists(new: list[New]) -> State:
    return [n[0] for n in new], [n[1] for n in new], [n[2] for n in new]


def _step(update: Update, narrow: bool = False) -> Step:
    """One step with the same arithmetic for every tensor."""
    return lambda **inputs: _lists([update(p) for p in _parameters(inputs, narrow)])


def magnitude(**inputs: Any) -> State:
    """What the rounding errors of each output are relative to.

    Of a moment, the sum of both terms: a narrowed ``1 - beta`` is off by a rounding of 1. Of a
    parameter, its own magnitude and that of its update. A bias correction ``1 - beta**t`` is off by
    ``(1 + t·beta**t) / (1 - beta**t)`` roundings, by the condition of the subtraction and of the
    power.
    """
    return _lists([_magnitude(p) for p in _parameters(inputs)])


def _magnitude(p: Parameter) -> New:
    roundings1 = (1 + p.step * p.beta1**p.step) / p.correction1
    roundings2 = (1 + p.step * p.beta2**p.step) / p.correction2
    avg_size = p.avg.abs() + p.grad.abs()
    sq_size = p.sq + p.grad * p.grad
    _, new_sq = _moments(p)
    denominator = (new_sq / p.correction2).sqrt() + p.eps
    # Half the relative error of the second moment enters by the root.
    relative_sq = torch.where(new_sq > 0, sq_size / new_sq, 0.0)
    update = avg_size / p.correction1 / denominator
    size = p.param.abs() + p.lr * update * (1 + roundings1 + roundings2 + relative_sq)
    return size, avg_size, sq_size


# --- honest


def _moments(p: Parameter) -> tuple[Tensor, Tensor]:
    avg = p.beta1 * p.avg + (1 - p.beta1) * p.grad
    sq = p.beta2 * p.sq + (1 - p.beta2) * p.grad * p.grad
    return avg, sq


def _lerp(p: Parameter) -> tuple[Tensor, Tensor]:
    """Each moment moved toward its new value."""
    return p.avg + (1 - p.beta1) * (p.grad - p.avg), p.sq + (1 - p.beta2) * (p.grad * p.grad - p.sq)


def _textbook(p: Parameter) -> New:
    avg, sq = _moments(p)
    update = (avg / p.correction1) / ((sq / p.correction2).sqrt() + p.eps)
    return p.param - p.lr * p.weight_decay * p.param - p.lr * update, avg, sq


def _decay_first(p: Parameter) -> New:
    avg, sq = _moments(p)
    denominator = (sq / p.correction2).sqrt() + p.eps
    return p.param * p.decay - p.lr * (avg / p.correction1) / denominator, avg, sq


def _folded_into_step(p: Parameter) -> New:
    """PyTorch's folding: the first correction in the step size, the second outside the root."""
    avg, sq = _moments(p)
    denominator = sq.sqrt() / p.correction2**0.5 + p.eps
    return p.param * p.decay - p.lr / p.correction1 * (avg / denominator), avg, sq


def _folded_into_eps(p: Parameter) -> New:
    """Kingma and Ba's folding: both corrections in the step size, and eps scaled."""
    avg, sq = _moments(p)
    root = p.correction2**0.5
    update = avg / (sq.sqrt() + p.eps * root)
    return p.param * p.decay - p.lr * root / p.correction1 * update, avg, sq


def _multiplied_corrections(p: Parameter) -> New:
    """Reciprocals of the corrections, and of the denominator."""
    avg, sq = _lerp(p)
    denominator = (sq * (1 / p.correction2)).sqrt() + p.eps
    update = avg * (1 / p.correction1) * (1 / denominator)
    return p.param - p.lr * (update + p.weight_decay * p.param), avg, sq


def _rounded_once(p: Parameter) -> New:
    param, avg, sq = _textbook(p.map(Tensor.double, *LISTS))
    return param.float(), avg.float(), sq.float()


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


# --- broken


def _rounded(name: str) -> Update:
    """Gradients and moments rounded to a coarse format on the way in."""
    return lambda p: _textbook(p.map(lambda value: round_to(value, name), "grad", "avg", "sq"))


def _rounded_update(name: str) -> Update:
    """Only what is subtracted from the parameter is rounded."""

    def update(p: Parameter) -> New:
        avg, sq = _moments(p)
        step = (avg / p.correction1) / ((sq / p.correction2).sqrt() + p.eps)
        decayed = p.param - p.lr * p.weight_decay * p.param
        return decayed - p.lr * round_to(step, name), avg, sq

    return update


def _no_correction(p: Parameter) -> New:
    avg, sq = _moments(p)
    return p.param * p.decay - p.lr * avg / (sq.sqrt() + p.eps), avg, sq


def _coupled_decay(p: Parameter) -> New:
    """Adam with L2 regularisation."""
    avg, sq = _moments(replace(p, grad=p.grad + p.weight_decay * p.param))
    update = (avg / p.correction1) / ((sq / p.correction2).sqrt() + p.eps)
    return p.param - p.lr * update, avg, sq


def _eps_in_the_root(p: Parameter) -> New:
    avg, sq = _moments(p)
    update = (avg / p.correction1) / (sq / p.correction2 + p.eps).sqrt()
    return p.param * p.decay - p.lr * update, avg, sq


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
