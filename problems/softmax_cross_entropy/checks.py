"""Honest losses with gradients, which the check must accept, and broken ones, which it must
reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import SUM_ORDERS, alternately_off, round_to, sum_in, sum_pairwise

FAST_EXP_ERROR = 2.0**-22
"""Relative error of ex2.approx.ftz.f32, 2 units in the last place: CUDA's Programming Guide."""
ROUNDINGS = 256
"""Those that problem.yaml allows a probability."""
OVERFLOW = 88.0
"""Logits below which exp and its sum are finite in fp32."""

Both = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor, float], Both]
Mutant = Callable[[Tensor, Tensor, float], Both | None]


def magnitude(logits: Tensor, labels: Tensor, scale: float) -> Both:
    """The loss is a difference of the largest logit, the label's, and a logarithm whose argument is
    off by a relative error. The gradient at the label is a difference of a probability and 1. A
    probability may be the exponential of a logit less the logarithm, both rounded to fp32, whose
    rounding errors are relative ones of the probability."""
    at = labels[:, None]
    largest, mine = logits.amax(-1), logits.gather(1, at)[:, 0]
    total = (logits - largest[:, None]).exp().sum(-1)
    logarithm = (largest + total.log())[:, None]
    of_exponent = logarithm.abs() + (logits - logarithm).abs()
    size = torch.softmax(logits, -1) * (1 + of_exponent / ROUNDINGS)
    size = size.scatter_add(1, at, torch.ones_like(mine)[:, None]) * abs(scale)
    return largest.abs() + mine.abs() + total.log().abs() + 1, size


def _loss(
    total: Callable[[Tensor], Tensor] = sum_pairwise,
    exp: Callable[[Tensor], Tensor] = torch.exp,
    weights: Callable[[Tensor], Tensor] = lambda values: values,
) -> Loss:
    """Loss and gradient in fp32 with another sum, exponential, or precision of the weights."""

    def both(logits: Tensor, labels: Tensor, scale: float) -> Both:
        x = logits.float()
        largest = x.amax(-1, keepdim=True)
        terms = weights(exp(x - largest))
        return _finish(x, labels, scale, largest[:, 0], terms, total(terms), logits.dtype)

    return both


def _finish(
    x: Tensor,
    labels: Tensor,
    scale: float,
    largest: Tensor,
    terms: Tensor,
    total: Tensor,
    dtype: torch.dtype,
) -> Both:
    at = labels[:, None]
    loss = total.log() + (largest - x.gather(1, at)[:, 0])
    grad = terms / total[:, None]
    grad = grad.scatter(1, at, grad.gather(1, at) - 1)
    return loss, (grad * scale).to(dtype)


# --- honest


def _online(block: int) -> Loss:
    """One pass over blocks of classes, whose sum is rescaled when the maximum grows."""

    def both(logits: Tensor, labels: Tensor, scale: float) -> Both:
        x = logits.float()
        largest = torch.full((len(x),), -torch.inf, device=x.device)
        total = torch.zeros_like(largest)
        for part in x.split(block, dim=-1):
            grown = torch.maximum(largest, part.amax(-1))
            base = torch.where(torch.isinf(grown), 0.0, grown)
            total = total * torch.exp(largest - base) + sum_pairwise(
                torch.exp(part - base[:, None])
            )
            largest = grown
        terms = torch.exp(x - largest[:, None])
        return _finish(x, labels, scale, largest, terms, total, logits.dtype)

    return both


def _of_logarithm(logits: Tensor, labels: Tensor, scale: float) -> Both:
    """``exp(x - logsumexp)``."""
    x = logits.float()
    at = labels[:, None]
    logarithm = torch.logsumexp(x, -1, keepdim=True)
    grad = torch.exp(x - logarithm)
    grad = grad.scatter(1, at, grad.gather(1, at) - 1)
    return (logarithm - x.gather(1, at))[:, 0], (grad * scale).to(logits.dtype)


def _rounded_once(logits: Tensor, labels: Tensor, scale: float) -> Both:
    x = logits.double()
    largest = x.amax(-1)
    terms = torch.exp(x - largest[:, None])
    loss, grad = _finish(x, labels, scale, largest, terms, terms.sum(-1), logits.dtype)
    return loss.float(), grad


HONEST: dict[str, Loss] = {
    **{name: _loss(total) for name, total in SUM_ORDERS.items()},
    "fast exp": _loss(exp=lambda shifted: alternately_off(torch.exp(shifted), FAST_EXP_ERROR)),
    "online, blocks of 1024": _online(1024),
    "exp of the logit less logsumexp": _of_logarithm,
    "rounded once": _rounded_once,
}


# --- broken


def _where(applies: Callable[[Tensor], bool], mutant: Loss) -> Mutant:
    """The mutant on logits for which it is off by more than rounding; None elsewhere."""
    return lambda logits, labels, scale: mutant(logits, labels, scale) if applies(logits) else None


def _is_single(logits: Tensor) -> bool:
    """Of few enough classes that a sum in 16 bits is fast here."""
    return logits.dtype == torch.float32 and logits.shape[1] <= 8192


def _has_rows(logits: Tensor) -> bool:
    return len(logits) > 1


def _is_short(logits: Tensor) -> bool:
    """One class of so few counts."""
    return 2 <= logits.shape[1] <= 700


def _overflows(logits: Tensor) -> bool:
    return float(logits.max()) > OVERFLOW


def _without_maximum(logits: Tensor, labels: Tensor, scale: float) -> Both:
    x = logits.float()
    terms = torch.exp(x)
    zeros = torch.zeros(len(x), device=x.device)
    return _finish(x, labels, scale, zeros, terms, sum_pairwise(terms), logits.dtype)


def _label_plus_1(logits: Tensor, labels: Tensor, scale: float) -> Both:
    return _loss()(logits, (labels + 1) % logits.shape[1], scale)


def _label_of_next_row(logits: Tensor, labels: Tensor, scale: float) -> Both | None:
    next_labels = labels.roll(-1)
    return None if torch.equal(next_labels, labels) else _loss()(logits, next_labels, scale)


def _probabilities(logits: Tensor, labels: Tensor, scale: float) -> Both:
    """The gradient without the one at the label."""
    loss, _ = _loss()(logits, labels, scale)
    return loss, (torch.softmax(logits.float(), -1) * scale).to(logits.dtype)


def _only_at_label(logits: Tensor, labels: Tensor, scale: float) -> Both:
    """The small probabilities beside the label are left out of the gradient."""
    loss, grad = _loss()(logits, labels, scale)
    at = labels[:, None]
    return loss, torch.zeros_like(grad).scatter(1, at, grad.gather(1, at))


def _not_scaled(logits: Tensor, labels: Tensor, scale: float) -> Both:
    return _loss()(logits, labels, 1.0)


def _scaled_loss(logits: Tensor, labels: Tensor, scale: float) -> Both:
    loss, grad = _loss()(logits, labels, scale)
    return loss * scale, grad


def _negated(logits: Tensor, labels: Tensor, scale: float) -> Both:
    return _loss()(logits, labels, -scale)


def _mean_loss(logits: Tensor, labels: Tensor, scale: float) -> Both:
    loss, grad = _loss()(logits, labels, scale)
    return loss.mean().expand_as(loss).contiguous(), grad


def _all_but_last(terms: Tensor) -> Tensor:
    return sum_pairwise(terms[:, :-1])


MUTANTS: dict[str, Mutant] = {
    "no maximum subtracted": _where(_overflows, _without_maximum),
    "label plus 1": _label_plus_1,
    "label of the next row": _label_of_next_row,
    "no one at the label": _probabilities,
    "gradient at the label only": _only_at_label,
    "gradient not scaled": _not_scaled,
    "gradient negated": _negated,
    "loss scaled": _scaled_loss,
    "mean loss": _where(_has_rows, _mean_loss),
    "sum without the last class": _where(_is_short, _loss(_all_but_last)),
    "sum in fp16": _where(_is_single, _loss(lambda terms: sum_in(terms, torch.float16))),
    "sum in bf16": _where(_is_single, _loss(lambda terms: sum_in(terms, torch.bfloat16))),
    "weights in fp16": _where(_is_single, _loss(weights=lambda w: round_to(w, "fp16"))),
    "weights in bf16": _where(_is_single, _loss(weights=lambda w: round_to(w, "bf16"))),
}
ADMITTED = {
    # At some seeds one logit is the largest by far: all probabilities, and the sum, are nearly 0 or
    # 1.
    "sum in fp16": ["large_logits"],
    "sum in bf16": ["large_logits"],
    "weights in fp16": ["large_logits"],
    "weights in bf16": ["large_logits"],
}
