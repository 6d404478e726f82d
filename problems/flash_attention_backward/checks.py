"""Honest backward passes of attention, which the check must accept, and broken ones, which it must
reject."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grader.numerics import round_to

LOG2_E = math.log2(math.e)

Gradients = tuple[Tensor, Tensor, Tensor]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool, float], Gradients]
Mutant = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool, float], Gradients | None]


def magnitude(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> Gradients:
    """The sums behind each gradient, of absolute values. A score's gradient is a difference, whose
    two terms count each."""
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            kv = h // group
            weights = torch.exp(scale * (q[b, h] @ k[b, kv].T) - lse[b, h, :, None])
            if causal:
                weights.tril_()
            dv[b, kv] += weights.T @ dout[b, h].abs()
            delta = (dout[b, h] * out[b, h]).sum(dim=-1, keepdim=True)
            dscores = weights * ((dout[b, h] @ v[b, kv].T).abs() + delta.abs())
            dq[b, h] = abs(scale) * (dscores @ k[b, kv].abs())
            dk[b, kv] += abs(scale) * (dscores.T @ q[b, h].abs())
    return dq, dk, dv


@dataclass(frozen=True)
class _Tiled:
    """Tiles of queries and keys with sums in fp32: what may differ between honest kernels, and what
    broken ones do."""

    block: int = 64
    """Queries or keys that are added at a time."""
    exp2: bool = False
    """Exponentials of base 2."""
    operands: str | None = "input"
    """Weights and their gradients are rounded to the dtype of the inputs for the products; None
    keeps fp32, and a name rounds to that format."""
    backwards: bool = False
    """Sums run from the last query or key to the first."""
    rounds_heads: bool = False
    """Each query head's share of a key head's gradients is rounded to the dtype of the inputs."""
    accumulator: torch.dtype = torch.float32
    """Precision of the sums over queries or keys."""
    scores: str | None = None
    """A format to which the scores are rounded."""
    delta: float = 1.0
    """Factor of the term of `out` and `dout`."""
    dq_scale: bool = True
    dk_scale: bool = True
    """Whether the gradients are scaled as the scores were."""
    mask: bool = True
    """The recomputed weights are masked."""
    mask_offset: int = 0
    """Columns by which the causal mask is off."""
    heads_of_group: str = "sum"
    """Which query heads give a key head's gradients: ``sum``, ``mean`` or ``last``."""
    weights_given: bool = True
    """The scores' gradient has the weight as a factor."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        dout: Tensor,
        lse: Tensor,
        causal: bool,
        scale: float,
    ) -> Gradients:
        group = q.shape[1] // k.shape[1]
        queries, gradients = q.float(), dout.float()
        keys, values = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
        scores = queries @ keys.mT
        if self.scores is not None:
            scores = round_to(scores, self.scores)
        sums = lse[..., None]
        weights = (
            torch.exp2(scores * (scale * LOG2_E) - sums * LOG2_E)
            if self.exp2
            else torch.exp(scores * scale - sums)
        )
        if causal and self.mask:
            weights = weights.tril(self.mask_offset)
        delta = self.delta * (gradients * out.float()).sum(dim=-1, keepdim=True)
        dscores = gradients @ values.mT - delta
        if self.weights_given:
            dscores = dscores * weights
        weights, dscores = self._rounded(weights, q.dtype), self._rounded(dscores, q.dtype)
        dq = self._product(dscores, keys) * (scale if self.dq_scale else 1.0)
        dk = self._product(dscores.mT, queries) * (scale if self.dk_scale else 1.0)
        dv = self._product(weights.mT, gradients)
        dk, dv = (self._of_group(x, k) for x in (dk, dv))
        return dq.to(q.dtype), dk, dv

    def _rounded(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        if self.operands is None:
            return values
        if self.operands == "input":
            return values.to(dtype).float()
        return round_to(values, self.operands)

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=self.accumulator, device=a.device)
        starts = range(0, a.shape[-1], self.block)
        for start in reversed(starts) if self.backwards else starts:
            block = slice(start, start + self.block)
            total += (a[..., block] @ b[..., block, :]).to(self.accumulator)
        return total.float()

    def _of_group(self, gradient: Tensor, like: Tensor) -> Tensor:
        if self.rounds_heads:
            gradient = gradient.to(like.dtype).float()
        heads = gradient.unflatten(1, (like.shape[1], -1))
        if self.heads_of_group == "last":
            total: Tensor = heads[:, :, -1]
        else:
            total = heads.mean(dim=2) if self.heads_of_group == "mean" else heads.sum(dim=2)
        return total.to(like.dtype)


HONEST: dict[str, Backward] = {
    "tiles of 64": _Tiled(),
    "tiles of 128, exp2": _Tiled(block=128, exp2=True),
    "tiles of 16, backwards": _Tiled(block=16, backwards=True),
    "factors in fp32": _Tiled(operands=None),
    "heads of a group rounded": _Tiled(rounds_heads=True),
}


def _where(applies: Callable[[Tensor, Tensor, bool, float], bool], backward: Backward) -> Mutant:
    """The mutant where it may show, by queries, keys, the mask and the scale."""

    def mutant(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        dout: Tensor,
        lse: Tensor,
        causal: bool,
        scale: float,
    ) -> Gradients | None:
        if not applies(q, k, causal, scale):
            return None
        return backward(q, k, v, out, dout, lse, causal, scale)

    return mutant


def _causal(backward: Backward) -> Mutant:
    return _where(lambda q, k, causal, scale: causal, backward)


def _grouped(backward: Backward) -> Mutant:
    return _where(lambda q, k, causal, scale: q.shape[1] > k.shape[1], backward)


MUTANTS: dict[str, Mutant] = {
    "no delta": _Tiled(delta=0.0),
    "delta added": _Tiled(delta=-1.0),
    "delta twice": _Tiled(delta=2.0),
    "no scale in dq": _Tiled(dq_scale=False),
    "no scale in dk": _Tiled(dk_scale=False),
    "no weights in the scores' gradient": _Tiled(weights_given=False),
    "no mask": _causal(_Tiled(mask=False)),
    "own key masked": _causal(_Tiled(mask_offset=-1)),
    "mask one key too far": _causal(_Tiled(mask_offset=1)),
    "group averaged": _grouped(_Tiled(heads_of_group="mean")),
    "last head of the group": _grouped(_Tiled(heads_of_group="last")),
    "factors in fp8": _Tiled(operands="fp8"),
    "scores in fp8": _Tiled(scores="fp8"),
    "sums in bf16": _Tiled(block=1, accumulator=torch.bfloat16),
    # Inputs in bf16 are coarser.
    "sums in fp16": _where(
        lambda q, k, causal, scale: q.dtype == torch.float16,
        _Tiled(block=1, accumulator=torch.float16),
    ),
}

ADMITTED = {
    # At most 64 terms: as good as three results that are cut off to bf16.
    "sums in bf16": ["full", "grouped"],
    # Two terms; keys that few queries attend to.
    "sums in fp16": ["two_tokens", "peaked"],
}
