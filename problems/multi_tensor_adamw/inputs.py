"""Inputs of the AdamW problem: four lists of 1-D fp32 tensors, and the optimizer's scalars."""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHTS = (0, 1, 2, 5, 20, 100, 700, 3000)
"""How the sizes of mixed tensors relate; tensors of weight 0 have one element."""
GRAD_SIZE = {"normal": 1.0, "some_zero": 1.0, "zero": 0.0, "tiny": 1e-6}
STATE_SIZE = {"warm": 1.0, "zero": 0.0, "tiny": 1e-6}


def generate(
    generator: torch.Generator,
    call: int,
    *,
    count: int,
    total: int,
    sizes: str,
    state: str,
    grads: str,
    step: int,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.95,
    weight_decay: float = 0.1,
) -> dict[str, list[Tensor] | float | int]:
    """`count` tensors with `total` elements between them, as they are at `step` + `call`.

    `sizes` is ``equal`` or ``mixed``; `state` is ``warm``, ``zero`` (as before the first step) or
    ``tiny``; `grads` is ``normal``, ``zero``, ``some_zero`` (every other tensor) or ``tiny``, so
    small that eps counts.
    """
    # Other gradients at every call, even when two calls are seeded alike.
    generator.manual_seed(generator.initial_seed() + call)
    lengths = _mixed(count, total) if sizes == "mixed" else _equal(count, total)
    grad = _normal(generator, lengths, GRAD_SIZE[grads])
    if grads == "some_zero":
        for tensor in grad[::2]:
            tensor.zero_()
    size = STATE_SIZE[state]
    return {
        # As small as weights are: then rounding hides little of a change of about lr.
        "params": _normal(generator, lengths, 0.05),
        "grads": grad,
        "exp_avgs": _normal(generator, lengths, 0.1 * size),
        "exp_avg_sqs": _uniform(generator, lengths, 0.25 * size**2, size**2),
        "lr": lr,
        "beta1": beta1,
        "beta2": beta2,
        "eps": 1e-8,
        "weight_decay": weight_decay,
        "step": step + call,
    }


def _equal(count: int, total: int) -> list[int]:
    lengths = [total // count] * count
    lengths[-1] += total - sum(lengths)
    return lengths


def _mixed(count: int, total: int) -> list[int]:
    """One element for each tensor, the rest shared out by weight, what is left to the last."""
    weights = [WEIGHTS[index * 5 % len(WEIGHTS)] for index in range(count)]
    rest = total - count
    lengths = [1 + rest * weight // max(1, sum(weights)) for weight in weights]
    lengths[-1] += total - sum(lengths)
    return lengths


def _normal(generator: torch.Generator, lengths: list[int], size: float) -> list[Tensor]:
    flat = torch.randn(sum(lengths), generator=generator, device=generator.device)
    return list(flat.mul_(size).split(lengths))


def _uniform(
    generator: torch.Generator, lengths: list[int], low: float, high: float
) -> list[Tensor]:
    flat = torch.rand(sum(lengths), generator=generator, device=generator.device)
    return list(flat.mul_(high - low).add_(low).split(lengths))
