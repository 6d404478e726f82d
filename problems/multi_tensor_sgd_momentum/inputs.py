"""Inputs of SGD with momentum: three lists of 1-D fp32 tensors, and the optimizer's scalars."""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHTS = (0, 1, 2, 5, 20, 100, 700, 3000)
"""How the sizes of mixed tensors relate; tensors of weight 0 have one element."""
OUTLIER = 1000.0


def generate(
    generator: torch.Generator,
    call: int,
    *,
    count: int,
    total: int,
    sizes: str,
    state: str,
    grads: str,
    nesterov: bool,
    lr: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
) -> dict[str, list[Tensor] | float | bool]:
    """`count` tensors with `total` elements between them.

    `sizes` is ``equal`` or ``mixed``; `state` is ``warm`` or ``zero`` (as before the first step);
    `grads` is ``normal``, ``zero``, ``some_zero`` (every other tensor) or ``outliers``.
    """
    # Other gradients at every call, even when two calls are seeded alike.
    generator.manual_seed(generator.initial_seed() + call)
    lengths = _mixed(count, total) if sizes == "mixed" else _equal(count, total)
    # As small as weights are: then rounding hides little of a change of about lr.
    params = _normal(generator, lengths, 0.05)
    grad = _normal(generator, lengths, 0.0 if grads == "zero" else 1.0)
    for index, tensor in enumerate(grad):
        if grads == "some_zero" and index % 2 == 0:
            tensor.zero_()
        elif grads == "outliers":
            tensor[:: max(1, len(tensor) // 3)] *= OUTLIER
    return {
        "params": params,
        "grads": grad,
        "buffers": _normal(generator, lengths, 1.0 if state == "warm" else 0.0),
        "lr": lr,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "nesterov": nesterov,
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
