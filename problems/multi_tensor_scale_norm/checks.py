"""Honest unscalings with norm and flag, which the check must accept, and broken ones, which it must
reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import SUM_ORDERS, round_to, sum_blocked, sum_in, sum_pairwise, sum_sequential

CHUNK = 4096

Outputs = tuple[list[Tensor], Tensor, Tensor]
Unscale = Callable[[list[Tensor], float], Outputs]
Mutant = Callable[[list[Tensor], float], Outputs | None]
Sum = Callable[[Tensor], Tensor]
"""A sum along the last axis."""


def _outputs(unscaled: list[Tensor], square: Tensor) -> Outputs:
    """Norm and flag, given the sum of squares; a finite sum proves that no gradient overflowed."""
    norm = square.sqrt().float().reshape(1)
    return unscaled, norm, (~norm.isfinite()).int()


def _chunked(within: Sum = sum_pairwise, across: Sum = sum_pairwise) -> Unscale:
    """Squares summed within chunks, and then across them."""

    def unscale(grads: list[Tensor], inv_scale: float) -> Outputs:
        unscaled = [grad * inv_scale for grad in grads]
        every = torch.cat(unscaled)
        missing = -len(every) % CHUNK
        chunks = torch.nn.functional.pad(every, (0, missing)).unflatten(0, (-1, CHUNK))
        return _outputs(unscaled, across(within(chunks * chunks)))

    return unscale


# --- honest


def _by_tensor(grads: list[Tensor], inv_scale: float) -> Outputs:
    """The norm of each tensor's norm."""
    unscaled = [grad * inv_scale for grad in grads]
    norms = torch.stack([sum_blocked(g * g, CHUNK).sqrt() for g in unscaled])
    return _outputs(unscaled, sum_pairwise(norms * norms))


def _scaled_at_last(grads: list[Tensor], inv_scale: float) -> Outputs:
    """The sum is of the gradients as they are, and the norm is unscaled."""
    _, norm, overflow = _chunked()(grads, 1.0)
    return [grad * inv_scale for grad in grads], norm * inv_scale, overflow


def _rounded_once(grads: list[Tensor], inv_scale: float) -> Outputs:
    wide = [grad.double() * inv_scale for grad in grads]
    return _outputs([grad.float() for grad in wide], torch.cat(wide).square().sum())


HONEST: dict[str, Unscale] = {
    **{f"chunks: {name}": _chunked(total) for name, total in SUM_ORDERS.items()},
    "chunks added one after the other": _chunked(across=sum_sequential),
    "norm of the tensors' norms": _by_tensor,
    "norm unscaled at last": _scaled_at_last,
    "rounded once": _rounded_once,
}


# --- broken


def _with_norm(change: Callable[[list[Tensor], Tensor], Tensor]) -> Unscale:
    """Another norm of the unscaled gradients."""

    def unscale(grads: list[Tensor], inv_scale: float) -> Outputs:
        unscaled, norm, overflow = _chunked()(grads, inv_scale)
        return unscaled, change(unscaled, norm).float().reshape(1), overflow

    return unscale


def _norm_of_scaled(grads: list[Tensor], inv_scale: float) -> Outputs:
    """The norm of the gradients as they were."""
    unscaled, _, overflow = _chunked()(grads, inv_scale)
    return unscaled, _chunked()(grads, 1.0)[1], overflow


def _with_flag(of: Callable[[Tensor], Tensor]) -> Unscale:
    def unscale(grads: list[Tensor], inv_scale: float) -> Outputs:
        unscaled, norm, _ = _chunked()(grads, inv_scale)
        return unscaled, norm, of(torch.cat(grads)).int().reshape(1)

    return unscale


def _only_if_overflows(mutant: Unscale) -> Mutant:
    return lambda grads, inv_scale: (
        mutant(grads, inv_scale) if not bool(torch.cat(grads).isfinite().all()) else None
    )


def _only_if_finite(mutant: Unscale) -> Mutant:
    """Without an infinity that hides what else is wrong, of several tensors."""
    return lambda grads, inv_scale: (
        mutant(grads, inv_scale)
        if len(grads) > 1 and bool(torch.cat(grads).isfinite().all())
        else None
    )


def _cleaned(grads: list[Tensor], inv_scale: float) -> Outputs:
    """What is not finite becomes 0."""
    fine = [grad.nan_to_num(0.0, 0.0, 0.0) for grad in grads]
    unscaled, norm, _ = _chunked()(fine, inv_scale)
    return unscaled, norm, _chunked()(grads, inv_scale)[2]


def _clipped(grads: list[Tensor], inv_scale: float) -> Outputs:
    """The gradients are clipped to a norm of 1 as well."""
    unscaled, norm, overflow = _chunked()(grads, inv_scale)
    return [grad / norm.clamp(min=1) for grad in unscaled], norm, overflow


def _rounded(name: str) -> Unscale:
    """Only the gradients are rounded to a coarse format."""

    def unscale(grads: list[Tensor], inv_scale: float) -> Outputs:
        unscaled, norm, overflow = _chunked()(grads, inv_scale)
        return [round_to(grad, name) for grad in unscaled], norm, overflow

    return unscale


MUTANTS: dict[str, Mutant] = {
    "norm of the scaled gradients": _norm_of_scaled,
    "square of the norm": _only_if_finite(_with_norm(lambda _, norm: norm * norm)),
    "norm without the last tensor": _only_if_finite(
        _with_norm(lambda grads, _: torch.linalg.vector_norm(torch.cat(grads[:-1]).double()))
    ),
    "sum of the tensors' norms": _only_if_finite(
        _with_norm(lambda grads, _: torch.stack([g.double().norm() for g in grads]).sum())
    ),
    "largest gradient for the norm": _only_if_finite(
        _with_norm(lambda grads, _: torch.cat(grads).abs().amax())
    ),
    "squares in fp16": _chunked(lambda terms: sum_in(terms, torch.float16)),
    "squares in bf16": _chunked(lambda terms: sum_in(terms, torch.bfloat16)),
    "gradients in fp16": _rounded("fp16"),
    "gradients in bf16": _rounded("bf16"),
    "gradients clipped": _clipped,
    "never an overflow": _only_if_overflows(_with_flag(lambda every: every.new_zeros(()))),
    "always an overflow": _only_if_finite(_with_flag(lambda every: every.new_ones(()))),
    "overflow cleaned": _only_if_overflows(_cleaned),
}

ADMITTED = {
    # Five terms are nearly all of the sum, and rounding them is all that is off.
    "squares in fp16": ["outliers"],
    # A single gradient may be near a number of the format.
    "gradients in fp16": ["one_left"],
    # The last of 512 tensors may be small.
    "norm without the last tensor": ["small_tensors"],
}
