"""Honest attention, which the check must accept, and broken attention, which it must reject."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grader.numerics import matmul_in_steps, round_to

LOG2_E = math.log2(math.e)

Attention = Callable[[Tensor, Tensor, Tensor, bool, float], Tensor]
SomeHeads = Callable[[Tensor, Tensor, Tensor, bool, float], Tensor]
"""As `Attention`, of q [heads, q_len, head_dim] over k and v [heads, k_len, head_dim]; fp32."""
MOST_SCORES = 1 << 29
"""Scores of the heads that are computed at once, 2 GiB in fp32: one head at a time takes many
minutes on a GPU."""


def magnitude(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """The largest ``|v|`` of each column: at least the weighted sum of ``|v|``, whose weights sum
    to 1; [batch, heads, q_len, head_dim]."""
    largest = v.abs().amax(dim=2, keepdim=True)
    largest = largest.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return largest.expand(q.shape).contiguous()


def _every_head(some_heads: SomeHeads) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
        batch, heads, q_len, head_dim = q.shape
        group = heads // k.shape[1]
        columns = some_heads.block if isinstance(some_heads, _Flash) else k.shape[2]
        at_once = max(1, MOST_SCORES // (q_len * max(columns, head_dim)))
        out = q.new_empty(q.shape)
        for b in range(batch):
            for some in torch.arange(heads, device=q.device).split(at_once):
                keys, values = k[b, some // group], v[b, some // group]
                out[b, some] = some_heads(q[b, some], keys, values, causal, scale).to(q.dtype)
        return out

    return attention


def _visible(q_len: int, keys: Tensor, k_len: int, causal: bool, offset: int = 0) -> Tensor:
    """Which of the `keys` each query sees, bool [q_len, keys]."""
    last = torch.arange(q_len, device=keys.device)[:, None] + k_len - q_len + offset
    return keys <= last if causal else torch.ones_like(keys <= last)


@dataclass(frozen=True)
class _Flash:
    """One pass over blocks of keys with a running maximum and sum, as flash attention has it: what
    may differ between honest kernels, and what broken ones do."""

    block: int = 64
    exp2: bool = False
    """Exponentials of base 2, of scores scaled by log2(e)."""
    weights: str | None = "input"
    """Weights are rounded to the dtype of the inputs before the second product; None keeps fp32,
    and a name rounds to that format."""
    sum_of_rounded: bool = False
    """The sum is of the rounded weights."""
    scores: str | None = None
    """A format to which the scores are rounded."""
    accumulator: torch.dtype = torch.float32
    """Precision of the running output."""
    rescales: bool = True
    """The running output is rescaled when the maximum grows."""
    dropped_keys: int = 0
    """Keys at the end that are left out, where there are more."""
    mask_offset: int = 0
    """Columns by which the causal mask is off."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
        q_len, k_len = q.shape[1], k.shape[1]
        last = k_len - self.dropped_keys if k_len > self.dropped_keys else k_len
        largest = torch.full((*q.shape[:-1], 1), -torch.inf, device=q.device)
        total = torch.zeros_like(largest)
        out = torch.zeros(q.shape, dtype=self.accumulator, device=q.device)
        power = torch.exp2 if self.exp2 else torch.exp
        queries, positions = q.float(), torch.arange(k_len, device=q.device)
        factor = scale * (LOG2_E if self.exp2 else 1.0)
        for start in range(0, last, self.block):
            keys = slice(start, min(start + self.block, last))
            scores = (queries @ k[:, keys].float().mT) * factor
            if self.scores is not None:
                scores = round_to(scores, self.scores)
            if causal:
                visible = _visible(q_len, positions[keys], k_len, causal, self.mask_offset)
                scores = torch.where(visible, scores, -torch.inf)
            grown = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
            weights = power(scores - grown).nan_to_num_(nan=0.0)
            rescale = power(largest - grown).nan_to_num_(nan=0.0)
            rounded = self._rounded(weights, q.dtype)
            total = total * rescale + (rounded if self.sum_of_rounded else weights).sum(-1, True)
            if self.rescales:
                out = (out * rescale).to(self.accumulator)
            out = out + (rounded @ v[:, keys].float()).to(self.accumulator)
            largest = grown
        return (out.float() / total).nan_to_num_(nan=0.0)

    def _rounded(self, weights: Tensor, dtype: torch.dtype) -> Tensor:
        if self.weights is None:
            return weights
        return (
            weights.to(dtype).float()
            if self.weights == "input"
            else round_to(weights, self.weights)
        )


def _two_passes(order: Callable[[Tensor, Tensor], Tensor], rounds: bool = True) -> SomeHeads:
    """All scores, then softmax, then the second product; with `rounds`, of weights that are
    normalised and then rounded to the dtype of the inputs."""

    def some_heads(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
        keys = torch.arange(k.shape[1], device=q.device)
        scores = (q.float() @ k.float().mT) * scale
        scores = torch.where(_visible(q.shape[1], keys, k.shape[1], causal), scores, -torch.inf)
        weights = torch.softmax(scores, dim=-1).nan_to_num_(nan=0.0)
        return order(weights.to(q.dtype).float() if rounds else weights, v.float())

    return some_heads


def _merged_parts(parts: int) -> SomeHeads:
    """Flash decoding: ranges of keys on their own, merged by their maxima and sums."""

    def some_heads(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
        scores = (q.float() @ k.float().mT) * scale
        keys = torch.arange(k.shape[1], device=q.device)
        scores = torch.where(_visible(q.shape[1], keys, k.shape[1], causal), scores, -torch.inf)
        largest = scores.amax(dim=-1, keepdim=True)
        total = torch.zeros_like(largest)
        out = torch.zeros(q.shape, device=q.device)
        for columns in keys.chunk(parts):
            part = scores[..., columns]
            part_max = part.amax(dim=-1, keepdim=True)
            weights = torch.exp(part - part_max).nan_to_num_(nan=0.0)
            share = torch.exp(part_max - largest).nan_to_num_(nan=0.0)
            out += (weights.to(q.dtype).float() @ v[:, columns].float()) * share
            total += weights.sum(dim=-1, keepdim=True) * share
        return (out / total).nan_to_num_(nan=0.0)

    return some_heads


def _backwards(weights: Tensor, values: Tensor) -> Tensor:
    return matmul_in_steps(weights.flip(-1), values.flip(-2), 16)


def _one_key_at_a_time(weights: Tensor, values: Tensor) -> Tensor:
    """One accumulator for each output. A product is added by the operator that computes it, which
    takes half the time of two."""
    total = weights.new_zeros(*weights.shape[:-1], values.shape[-1])
    for key in range(weights.shape[-1]):
        total.baddbmm_(weights[..., key : key + 1], values[:, key : key + 1])
    return total


HONEST: dict[str, Attention] = {
    "blocks of 64 keys": _every_head(_Flash()),
    "blocks of 128 keys, exp2": _every_head(_Flash(block=128, exp2=True)),
    "blocks of 16 keys": _every_head(_Flash(block=16)),
    "sum of rounded weights": _every_head(_Flash(sum_of_rounded=True)),
    "weights in fp32": _every_head(_Flash(weights=None)),
    "two passes": _every_head(_two_passes(torch.matmul)),
    "two passes, keys backwards": _every_head(_two_passes(_backwards)),
    "two passes, one key at a time": _every_head(_two_passes(_one_key_at_a_time, rounds=False)),
    "8 ranges of keys, merged": _every_head(_merged_parts(8)),
}


def _where_coarser(name: str, attention: Attention) -> Callable[..., Tensor | None]:
    """The mutant that computes in a 16-bit format, where the inputs are not coarser."""

    def mutant(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor | None:
        is_finer = name == "fp16" and q.dtype == torch.bfloat16
        return None if is_finer else attention(q, k, v, causal, scale)

    return mutant


def _causal(attention: Attention) -> Callable[..., Tensor | None]:
    """The mutant where there is a mask."""
    return lambda q, k, v, causal, scale: attention(q, k, v, causal, scale) if causal else None


MUTANTS: dict[str, Callable[..., Tensor | None]] = {
    "weights in fp8": _every_head(_Flash(weights="fp8")),
    "scores in bf16": _every_head(_Flash(scores="bf16")),
    "scores in fp8": _every_head(_Flash(scores="fp8")),
    "output accumulated in bf16": _every_head(_Flash(block=16, accumulator=torch.bfloat16)),
    "output accumulated in fp16": _where_coarser(
        "fp16", _every_head(_Flash(block=16, accumulator=torch.float16))
    ),
    "not rescaled": _every_head(_Flash(block=16, rescales=False)),
    "last key left out": _every_head(_Flash(dropped_keys=1)),
    "last 16 keys left out": _every_head(_Flash(dropped_keys=16)),
    "mask off by one": _causal(_every_head(_Flash(mask_offset=-1))),
    "mask one key too far": _causal(_every_head(_Flash(mask_offset=1))),
}

_SMALL_SCORES = ["decode", "full", "causal_primes", "causal_diagonal", "more_queries_causal"]
_SMALL_SCORES += ["grouped", "other_scale", "practice_causal", "long_causal"]

ADMITTED = {
    # Scores of a few units are off by 0.01, their weights by a hundredth or less: so are weights
    # rounded to bf16, as tensor cores ask.
    "scores in bf16": _SMALL_SCORES,
    # One heavy weight rounds to fp8 with little error.
    "weights in fp8": ["decode", "causal_diagonal", "long_causal", "large_logits"],
    # Up to 12 partial sums of 16 keys each.
    "output accumulated in bf16": [*_SMALL_SCORES, "wide_heads", "large_logits"],
    # The output is rounded to 16 bits itself.
    "output accumulated in fp16": [
        "long_queries",
        "many_batches",
        "more_keys",
        "more_keys_causal",
        "one_kv_head",
        "equal_keys",
        "practice_full",
    ],
    # Only the last query sees the last key, and need not weigh it.
    "last key left out": [
        "wide_heads",
        "other_scale",
        "chunk",
        "longest",
        "causal_1k",
        "chunk_16k",
        "grouped_8k",
        "causal_16k",
    ],
    # Each query has its own key, and weighs one more of a thousand little.
    "mask one key too far": ["long_causal"],
}
