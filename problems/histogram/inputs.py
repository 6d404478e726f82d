"""Inputs of the histogram: numbers from 0 to 1, in one of several distributions."""

from __future__ import annotations

import torch
from torch import Tensor


def generate(
    generator: torch.Generator, call: int, *, n: int, bins: int, values: str
) -> dict[str, Tensor]:
    """`x` [n] in fp32, from 0 to 1, both included; `values` names the distribution.

    ``uniform``; ``edges``, on the edges of bins and next to them; ``equal``, one number, so that
    all counts meet in one bin; ``two_values``, of neighbouring bins, in turn; ``peaked``, mostly in
    a few bins; ``near_zero``, down to denormal numbers, with zeros of both signs; ``sorted``.
    """
    x = torch.rand(n, generator=generator, device=generator.device)
    if values == "edges":
        x = _near_edges(x, bins)
    elif values == "equal":
        x = x[:1].expand(n).clone()
    elif values == "two_values":
        x[0::2] = x[:1].clone()
        x[1::2] = (x[0] + 1 / bins) % 1
    elif values == "peaked":
        x = x.mul_(2).sub_(1).pow_(5).mul_(0.5).add_(0.5)
    elif values == "near_zero":
        x = torch.exp2(x * -150)
        x[3::11] = 0.0
        x[7::11] = -0.0
    elif values == "sorted":
        x = x.sort().values
    return {"x": x}


def _near_edges(x: Tensor, bins: int) -> Tensor:
    """Edges from 0 to 1; every third is the next number below, every third the next above."""
    x = (x * (bins + 1)).floor_().clamp_(max=bins) / bins
    x[1::3] = torch.nextafter(x[1::3], torch.zeros_like(x[1::3]))
    x[2::3] = torch.nextafter(x[2::3], torch.ones_like(x[2::3]))
    return x
