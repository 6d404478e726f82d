"""Inputs of the sparse matmul: activations, and weights of which two in four are zero."""

from __future__ import annotations

import torch
from torch import Tensor

STEP = 16
"""Terms that cancel the next as many: the depth of one tensor core instruction."""
STEEP = 1.5
"""Size of a weight of `cancelling`. Sixteen terms, half of them zero, then add up to about 8."""
MOST_CANCELLING = 2048
"""Terms that may cancel: tensor cores cut sums off instead of rounding them, so that the errors of
more steps add up to what a result's rounding is."""
MOST_OCTAVES = 2


def generate(
    generator: torch.Generator, call: int, *, m: int, k: int, n: int, values: str
) -> dict[str, Tensor]:
    """`x` fp16 [m, k] and `w` fp16 [n, k], of whose elements 4i to 4i + 3 at most two are not zero.

    Outputs have a size of about 1. `values` names the distribution: ``normal``; ``first`` and
    ``last`` (the same two places in every group); ``fewer`` (groups of one weight or none);
    ``one_hot`` (a row of `x` picks a column of `w`); ``uneven`` (rows of both differ by powers of
    two); ``cancelling`` (16 terms are large and positive, the next 16 nearly take them back).
    """
    device = generator.device

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    x, w = normal(m, k), normal(n, k) / (k / 2) ** 0.5
    # The two largest of four random numbers: any pair of places is as likely.
    order = torch.rand(n, k // 4, 4, generator=generator, device=device)
    if values == "first":
        order += torch.tensor([2, 2, 0, 0], device=device)
    elif values == "last":
        order += torch.tensor([0, 0, 2, 2], device=device)
    elif values == "one_hot":
        picked = torch.randint(k, (m, 1), generator=generator, device=device)
        x = torch.zeros_like(x).scatter_(1, picked, 1.0)
        w *= (k / 2) ** 0.5
    elif values == "uneven":
        x *= 2.0 ** _octaves(generator, m)
        w *= 2.0 ** _octaves(generator, n)
    elif values == "cancelling":
        x, w, order = _cancelling(x, w, order)
    elif values not in ("normal", "fewer"):
        raise ValueError(f"no distribution named {values!r}")

    kept = torch.zeros_like(order).scatter_(2, order.topk(2, dim=2).indices, 1.0)
    if values == "fewer":
        kept *= torch.rand(kept.shape, generator=generator, device=device) < 0.4
        kept[:, ::5] = 0
    return {"x": x.half(), "w": (w * kept.flatten(1)).half()}


def _octaves(generator: torch.Generator, rows: int) -> Tensor:
    size = (rows, 1)
    return torch.randint(
        -MOST_OCTAVES, MOST_OCTAVES + 1, size, generator=generator, device=generator.device
    )


def _cancelling(x: Tensor, w: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights have the same values and places in both of a pair of 16."""
    k = x.shape[1]
    size = min(k - k % (2 * STEP), MOST_CANCELLING)
    first, second = x[:, :size].unflatten(1, (-1, 2, STEP)).unbind(2)
    large = first.abs().half()
    small = second / (STEEP * (size / 4) ** 0.5)
    pairs = torch.stack((large, small - large), dim=2).flatten(1)
    steep = STEEP * (k / 2) ** 0.5
    weights = steep * w[:, :size].abs().unflatten(1, (-1, 2, STEP))[:, :, :1]
    weights = weights.expand(-1, -1, 2, -1).flatten(1)
    places = order[:, : size // 4].unflatten(1, (-1, 2, STEP // 4))[:, :, :1]
    places = places.expand(-1, -1, 2, -1, -1).flatten(1, 3)
    return (
        torch.cat((pairs, x[:, size:]), dim=1),
        torch.cat((weights, w[:, size:]), dim=1),
        torch.cat((places, order[:, size // 4 :]), dim=1),
    )
