"""Honest SwiGLUs, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import alternately_off, round_to

FAST_EXP_ERROR = 2.0**-22
"""Relative error of ex2.approx.ftz.f32, 2 units in the last place: CUDA's Programming Guide."""
FAR = 20.0
"""Gates below minus this are so small after the sigmoid that cancellation shows in any dtype."""

Mutant = Callable[[Tensor], Tensor | None]


def _swiglu(silu: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """SwiGLU in fp32 with another SiLU."""

    def swiglu(x: Tensor) -> Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        return (silu(gate) * up).to(x.dtype)

    return swiglu


def _silu(gate: Tensor) -> Tensor:
    return gate / (1 + torch.exp(-gate))


# --- honest


def _by_exp2(gate: Tensor) -> Tensor:
    return gate * (1 / (1 + torch.exp2(gate * -math.log2(math.e))))


def _fast(gate: Tensor) -> Tensor:
    """With fast exponential and division."""
    power = alternately_off(torch.exp2(gate * -math.log2(math.e)), FAST_EXP_ERROR)
    return alternately_off(gate / (1 + power), FAST_EXP_ERROR)


def _without_overflow(gate: Tensor) -> Tensor:
    """exp(-|g|) only."""
    power = torch.exp(-gate.abs())
    return gate * torch.where(gate >= 0, 1.0, power) / (1 + power)


def _rounded_twice(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return _silu(gate.float()).to(x.dtype) * up


def _rounded_once(x: Tensor) -> Tensor:
    gate, up = x.double().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(x.dtype)


HONEST: dict[str, Callable[[Tensor], Tensor]] = {
    "quotient": _swiglu(_silu),
    "product with a sigmoid": _swiglu(lambda gate: gate * torch.sigmoid(gate)),
    "exp2": _swiglu(_by_exp2),
    "fast exp and division": _swiglu(_fast),
    "exponential of -|g|": _swiglu(_without_overflow),
    "rounded before the product": _rounded_twice,
    "rounded once": _rounded_once,
}


# --- broken


def _where(applies: Callable[[Tensor], bool], mutant: Callable[[Tensor], Tensor]) -> Mutant:
    """The mutant on inputs for which it is off by more than rounding; None elsewhere."""
    return lambda x: mutant(x) if applies(x) else None


def _is_single(x: Tensor) -> bool:
    """Of enough elements that one is rounded by much."""
    return x.dtype == torch.float32 and x.numel() > 8


def _has_far_gates(x: Tensor) -> bool:
    """Some are so negative that a small absolute error is a large relative one."""
    gates = x[:, : x.shape[1] // 2]
    return bool(((gates < -FAR) & (gates > -85)).any())


def _has_high_gates(x: Tensor) -> bool:
    return float(x[:, : x.shape[1] // 2].max()) > 89


def _swapped_halves(x: Tensor) -> Tensor:
    return _swiglu(_silu)(torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1))


def _interleaved(x: Tensor) -> Tensor:
    """Gates in the even columns, up in the odd ones."""
    return (_silu(x[:, ::2].float()) * x[:, 1::2].float()).to(x.dtype)


def _row_above(x: Tensor) -> Tensor:
    gate, up = x.float().chunk(2, dim=-1)
    return (_silu(gate) * up.roll(1, 0)).to(x.dtype)


def _rounded_to(name: str) -> Mutant:
    return _where(_is_single, _swiglu(lambda gate: round_to(_silu(gate), name)))


MUTANTS: dict[str, Mutant] = {
    "gate and up swapped": _swapped_halves,
    "gate and up interleaved": _interleaved,
    "up of the row above": _row_above,
    "sigmoid only": _swiglu(torch.sigmoid),
    "GELU instead of SiLU": _swiglu(torch.nn.functional.gelu),
    "exp(g) / (1 + exp(g))": _where(
        _has_high_gates, _swiglu(lambda gate: gate * (gate.exp() / (1 + gate.exp())))
    ),
    "sigmoid by tanh": _where(
        _has_far_gates, _swiglu(lambda gate: gate * (0.5 + 0.5 * torch.tanh(0.5 * gate)))
    ),
    "SiLU in fp16": _rounded_to("fp16"),
    "SiLU in bf16": _rounded_to("bf16"),
    "SiLU in TF32": _rounded_to("tf32"),
}
