"""Honest rotations, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import round_to

Rope = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Pairs = Callable[[Tensor], tuple[Tensor, Tensor]]


def magnitude(x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Each element is the sum of two products, which may cancel."""
    cos, sin = cosines[positions][:, None].abs(), sines[positions][:, None].abs()
    first, second = x.abs().chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos + first * sin], dim=-1)


def _rotate(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return first * cos - second * sin, second * cos + first * sin


def _rope(
    rotate: Callable[..., tuple[Tensor, Tensor]] = _rotate,
    positions_of: Callable[[Tensor, int], Tensor] = lambda positions, most: positions,
) -> Rope:
    """The rotation in fp32 with other arithmetic, or at other positions."""

    def rope(x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        at = positions_of(positions, len(cosines))
        first, second = x.float().chunk(2, dim=-1)
        rotated = rotate(first, second, cosines[at][:, None], sines[at][:, None])
        return torch.cat(rotated, dim=-1).to(x.dtype)

    return rope


# --- honest


def _fused(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """One product is rounded, the other is part of a fused multiply-add. In float64 a product of
    fp32 numbers is exact, so that the sum is rounded once."""
    wide, wide_cos = (first.double(), second.double()), cos.double()
    one = (wide[0] * wide_cos - (second * sin).double()).float()
    return one, (wide[1] * wide_cos + (first * sin).double()).float()


def _rounded_once(x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    cos, sin = cosines[positions][:, None].double(), sines[positions][:, None].double()
    return torch.cat(_rotate(*x.double().chunk(2, dim=-1), cos, sin), dim=-1).to(x.dtype)


def _half_rotated(x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """``x·cos + rotate_half(x)·sin``, as in many models."""
    cos, sin = cosines[positions].repeat(1, 2)[:, None], sines[positions].repeat(1, 2)[:, None]
    first, second = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


HONEST: dict[str, Rope] = {
    "two products and a sum": _rope(),
    "fused multiply-add": _rope(_fused),
    "half rotated": _half_rotated,
    "rounded once": _rounded_once,
}


# --- broken

Mutant = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None]


def _adjacent_pairs(x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor | None:
    """Pairs of elements 2i and 2i + 1, as in the first models."""
    if x.shape[-1] == 2:
        return None  # both have the same pair
    cos, sin = cosines[positions][:, None], sines[positions][:, None]
    rotated = _rotate(x.float()[..., ::2], x.float()[..., 1::2], cos, sin)
    return torch.stack(rotated, dim=-1).flatten(-2).to(x.dtype)


def _clockwise(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return _rotate(first, second, cos, -sin)


def _first_half_only(
    first: Tensor, second: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    return first * cos - second * sin, second


def _tables_in(name: str) -> Mutant:
    """Tables rounded to a format that is coarser than the output's."""

    def rope(x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor | None:
        if x.dtype != torch.float32:
            return None  # as small as the rounding of the result
        return _rope()(x, positions, round_to(cosines, name), round_to(sines, name))

    return rope


def _index_of_token(positions: Tensor, most: int) -> Tensor:
    return torch.arange(len(positions), device=positions.device) % most


MUTANTS: dict[str, Mutant] = {
    "pairs of neighbours": _adjacent_pairs,
    "rotated clockwise": _rope(_clockwise),
    "only the first half rotated": _rope(_first_half_only),
    "next position": _rope(positions_of=lambda positions, most: (positions + 1) % most),
    "index of the token as position": _rope(positions_of=_index_of_token),
    "tables in fp16": _tables_in("fp16"),
    "tables in bf16": _tables_in("bf16"),
    "tables in TF32": _tables_in("tf32"),
}
