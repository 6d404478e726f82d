"""Honest paged attention, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from grader.numerics import matmul_in_steps, round_to

from .reference import tokens_of

LOG2_E = math.log2(math.e)

Decode = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]
Mutant = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor | None]
Groups = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""Attention of queries [sequences, key heads, group, head_dim] over their groups' keys and values
[sequences, key heads, longest, head_dim], of which each sequence has the first of its `lengths`
[sequences]; the others are 0. Gives fp32."""
OfGroup = Callable[[int, int, int], int]
"""The key head of a query head, given the numbers of query heads and of key heads."""
MOST_ELEMENTS = 1 << 28
"""Elements of the keys of the sequences that are computed at once: one at a time takes minutes on a
GPU."""


def magnitude(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    """The largest ``|v|`` of each column: at least the weighted sum of ``|v|``, whose weights sum
    to 1; [batch, heads, head_dim]."""
    largest = [
        tokens_of(v_pages, row, length).abs().amax(dim=0)
        for row, length in zip(block_table, lengths.tolist(), strict=True)
    ]
    return torch.stack(largest).repeat_interleave(q.shape[1] // v_pages.shape[2], dim=1)


def _paged(
    attention: Groups, of_group: OfGroup = lambda h, heads, kv: h // (heads // kv)
) -> Decode:
    """Many sequences at once, of similar lengths; their heads in groups that share a key head."""

    def decode(
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        scale: float,
    ) -> Tensor:
        heads, kv_heads = q.shape[1], k_pages.shape[2]
        owners = torch.tensor([of_group(h, heads, kv_heads) for h in range(heads)])
        used = owners.unique()
        # Every key head that is used has as many query heads.
        mine = owners.argsort(stable=True).view(len(used), -1).to(q.device)
        used = used.to(q.device)
        at_once = MOST_ELEMENTS // (int(lengths.max()) * len(used) * q.shape[2])
        out = torch.empty_like(q)
        for some in lengths.argsort(descending=True).split(max(1, at_once)):
            keys, values = (
                _gathered(pages, block_table[some], lengths[some])[:, used]
                for pages in (k_pages, v_pages)
            )
            result = attention(q[some][:, mine], keys, values, lengths[some], scale)
            out[some[:, None, None], mine] = result.to(q.dtype)
        return out

    return decode


def _gathered(pages: Tensor, block_table: Tensor, lengths: Tensor) -> Tensor:
    """The tokens of sequences, [sequences, key heads, longest, head_dim]; 0 beyond a length."""
    tokens, page_size = torch.arange(int(lengths.max()), device=pages.device), pages.shape[1]
    found = pages[block_table.long()[:, tokens // page_size], tokens % page_size]
    return found.masked_fill((tokens >= lengths[:, None])[..., None, None], 0.0).transpose(1, 2)


def _scores(
    q: Tensor, k: Tensor, lengths: Tensor, scale: float, rounded: str | None = None
) -> Tensor:
    """Scaled scores in fp32, [sequences, key heads, group, longest], rounded to a format if one is
    given; -inf beyond a length."""
    scores = (q.float() @ k.float().mT) * scale
    if rounded is not None:
        scores = round_to(scores, rounded)
    beyond = torch.arange(k.shape[2], device=k.device) >= lengths[:, None, None, None]
    return scores.masked_fill(beyond, -torch.inf)


def _in_order_of(tokens: Tensor, values: Tensor) -> Tensor:
    """Keys or values of sequences in the order of these `tokens` [sequences, count]."""
    return values.take_along_dim(tokens[:, None, :, None], dim=2)


@dataclass(frozen=True)
class _Flash:
    """One pass over blocks of keys with a running maximum and sum: what may differ between honest
    kernels, and what broken ones do."""

    block: int = 64
    exp2: bool = False
    """Exponentials of base 2, of scores scaled by log2(e)."""
    backwards: bool = False
    """From the last key to the first."""
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
    """The running output and sum are rescaled when the maximum grows."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float) -> Tensor:
        if self.backwards:
            tokens = torch.arange(k.shape[2], device=k.device)
            from_last = (lengths[:, None] - 1 - tokens).clamp(min=0)
            k, v = (_in_order_of(from_last, x) for x in (k, v))
        scores = _scores(q, k, lengths, scale * (LOG2_E if self.exp2 else 1.0), self.scores)
        missing = -scores.shape[-1] % self.block
        blocks = pad(scores, (0, missing), value=-torch.inf).unflatten(-1, (-1, self.block))
        values = pad(v.float(), (0, 0, 0, missing)).unflatten(2, (-1, self.block))
        # All maxima and weights at once: only the sums need one block after the other.
        power = torch.exp2 if self.exp2 else torch.exp
        largest = blocks.amax(dim=-1).cummax(dim=-1).values
        before = pad(largest[..., :-1], (1, 0), value=-torch.inf)
        rescale = power(before - largest) if self.rescales else torch.ones_like(largest)
        weights = power(blocks - largest[..., None])
        rounded = self._rounded(weights, q.dtype)
        sums = (rounded if self.sum_of_rounded else weights).sum(dim=-1)
        total = torch.zeros(*q.shape[:-1], 1, device=q.device)
        out = torch.zeros(q.shape, dtype=self.accumulator, device=q.device)
        for i in range(blocks.shape[-2]):
            factor = rescale[..., i, None]
            total = total * factor + sums[..., i, None]
            out = (out * factor).to(self.accumulator)
            out = out + (rounded[..., i, :] @ values[:, :, i]).to(self.accumulator)
        return out.float() / total

    def _rounded(self, weights: Tensor, dtype: torch.dtype) -> Tensor:
        if self.weights is None:
            return weights
        if self.weights == "input":
            return weights.to(dtype).float()
        return round_to(weights, self.weights)


# --- honest


def _two_passes(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """All scores, then softmax, then the second product, of normalised weights in 16 bits."""
    weights = torch.softmax(_scores(q, k, lengths, scale), dim=-1)
    return weights.to(q.dtype).float() @ v.float()


def _few_keys_at_a_time(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float) -> Tensor:
    weights = torch.softmax(_scores(q, k, lengths, scale), dim=-1)
    return matmul_in_steps(weights, v.float(), 4)


def _split(parts: int, shares: bool = True) -> Groups:
    """Flash decoding: ranges of each sequence's keys on their own, merged by their maxima and sums;
    without `shares`, each range counts the same."""

    def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float) -> Tensor:
        size = lengths.long().add(parts - 1).div(parts, rounding_mode="floor")
        within = torch.arange(int(size.max()), device=q.device)
        first = torch.arange(parts, device=q.device) * size[:, None]
        tokens = first[..., None] + within  # [sequences, parts, longest part]
        is_mine = (within < size[:, None, None]) & (tokens < lengths[:, None, None])
        tokens = tokens.clamp(max=k.shape[2] - 1).flatten(1)
        keys, values = (_in_order_of(tokens, x.float()).unflatten(2, (parts, -1)) for x in (k, v))
        scores = (q.float()[:, :, None] @ keys.mT) * scale  # [..., parts, group, longest part]
        scores = scores.masked_fill(~is_mine[:, None, :, None], -torch.inf)
        maxima = scores.amax(dim=-1, keepdim=True)
        weights = torch.exp(scores - maxima).nan_to_num(nan=0.0)
        sums = weights.sum(dim=-1, keepdim=True)
        outs = (weights.to(q.dtype).float() @ values) / sums
        share = sums * torch.exp(maxima - maxima.amax(dim=2, keepdim=True))
        is_empty = ~is_mine.any(dim=-1)[:, None, :, None, None]
        share = (share if shares else torch.ones_like(share)).masked_fill(is_empty, 0.0)
        return (outs.masked_fill(is_empty, 0.0) * share).sum(dim=2) / share.sum(dim=2)

    return attention


HONEST: dict[str, Decode] = {
    "blocks of 64 keys": _paged(_Flash()),
    "blocks of 16 keys": _paged(_Flash(block=16)),
    "blocks of 128 keys, exp2": _paged(_Flash(block=128, exp2=True)),
    "blocks of 32 keys, backwards": _paged(_Flash(block=32, backwards=True)),
    "sum of rounded weights": _paged(_Flash(sum_of_rounded=True)),
    "weights in fp32": _paged(_Flash(weights=None)),
    "two passes": _paged(_two_passes),
    "4 keys at a time": _paged(_few_keys_at_a_time),
    "3 ranges of keys, merged": _paged(_split(3)),
    "8 ranges of keys, merged": _paged(_split(8)),
}


# --- broken

_decode = _paged(_Flash())


def _changed(change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Mutant:
    """The block table and the lengths are read wrongly: `change` gives others of the pages, the
    table and the lengths. No token is beyond the table. Applies where the tokens are others: their
    order does not matter."""

    def mutant(
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        scale: float,
    ) -> Tensor | None:
        page_size = k_pages.shape[1]
        table, changed = change(k_pages, block_table, lengths)
        changed = changed.clamp(1, table.shape[1] * page_size)
        slots, others = _slots(block_table, lengths, page_size), _slots(table, changed, page_size)
        if torch.equal(slots, others):
            return None
        return _decode(q, k_pages, v_pages, table, changed, scale)

    return mutant


def _slots(table: Tensor, lengths: Tensor, page_size: int) -> Tensor:
    """The places in the pool of each sequence's tokens, in ascending order; -1 for the rest of the
    table."""
    within = torch.arange(page_size, device=table.device)
    slots = (table.long()[..., None] * page_size + within).flatten(1)
    tokens = torch.arange(slots.shape[1], device=table.device)
    return slots.masked_fill(tokens >= lengths[:, None], -1).sort(dim=1).values


def _with_table(change: Callable[[Tensor], Tensor]) -> Mutant:
    return _changed(lambda pages, table, lengths: (change(table), lengths))


def _with_lengths(change: Callable[[Tensor, int], Tensor]) -> Mutant:
    """`change` gets the lengths and the size of a page."""
    return _changed(lambda pages, table, lengths: (table, change(lengths, pages.shape[1])))


def _first_page_of_neighbour(table: Tensor) -> Tensor:
    return torch.cat([table[:, :1].roll(1, dims=0), table[:, 1:]], dim=1)


def _last_column_of_next_row(table: Tensor) -> Tensor:
    """The last column is read one element too far."""
    return torch.cat([table[:, :-1], table[:, :1].roll(-1, dims=0)], dim=1)


def _backwards(pages: Tensor, table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The pages of each row from the last to the first. Where all are full, that is another order
    of the same keys, which changes no sum."""
    are_full = bool((lengths == table.shape[1] * pages.shape[1]).all())
    return table if are_full else table.flip(1), lengths


def _in_order(pages: Tensor, table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The table is ignored: sequences follow each other in the pool."""
    order = torch.arange(table.numel(), device=table.device) % len(pages)
    return order.view_as(table).to(table.dtype), lengths


def _one_behind(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """The weight of a key meets the value of the token before, and the first key's the last."""
    tokens = torch.arange(k.shape[2], device=k.device)
    behind = (tokens - 1).remainder(lengths[:, None])
    return _Flash()(q, k, _in_order_of(behind.long(), v), lengths, scale)


def _where(applies: Callable[[Tensor, int, float], bool], decode: Decode) -> Mutant:
    """The mutant where it may show, by the query, the number of key heads and the scale."""

    def mutant(
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        block_table: Tensor,
        lengths: Tensor,
        scale: float,
    ) -> Tensor | None:
        if not applies(q, k_pages.shape[2], scale):
            return None
        return decode(q, k_pages, v_pages, block_table, lengths, scale)

    return mutant


def _scaled_by(change: Callable[[float, int], float]) -> Decode:
    """`change` gets the scale and the head's dimension."""
    return _paged(
        lambda q, k, v, lengths, scale: _Flash()(q, k, v, lengths, change(scale, q.shape[-1]))
    )


def _rounded_query(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """The scale is folded into the query, which is rounded again."""
    return _Flash()((q.float() * (scale * LOG2_E)).to(q.dtype), k, v, lengths, 1 / LOG2_E)


MUTANTS: dict[str, Mutant] = {
    "first page of another sequence": _with_table(_first_page_of_neighbour),
    "last column of the next row": _with_table(_last_column_of_next_row),
    "pages backwards": _changed(_backwards),
    "block table ignored": _changed(_in_order),
    "tail of the last page": _with_lengths(lambda lengths, page: -(-lengths // page) * page),
    "last page left out": _with_lengths(lambda lengths, page: (lengths - 1) // page * page),
    "one token too few": _with_lengths(lambda lengths, page: lengths - 1),
    "one token too many": _with_lengths(lambda lengths, page: lengths + 1),
    "length of another sequence": _with_lengths(lambda lengths, page: lengths.roll(1)),
    "values one token behind": _paged(_one_behind),
    "heads in turn": _where(
        lambda q, kv_heads, scale: 1 < kv_heads < q.shape[1],
        _paged(_Flash(), lambda h, heads, kv: h % kv),
    ),
    "the first key head for all": _where(
        lambda q, kv_heads, scale: kv_heads > 1, _paged(_Flash(), lambda h, heads, kv: 0)
    ),
    "no scale": _scaled_by(lambda scale, head_dim: 1.0),
    "scale squared": _scaled_by(lambda scale, head_dim: scale * scale),
    "scale by the head": _where(
        lambda q, kv_heads, scale: scale != q.shape[2] ** -0.5,
        _scaled_by(lambda scale, head_dim: head_dim**-0.5),
    ),
    "not rescaled": _paged(_Flash(block=16, rescales=False)),
    "parts averaged": _paged(_split(3, shares=False)),
    "weights in fp8": _paged(_Flash(weights="fp8")),
    "scores in bf16": _paged(_Flash(scores="bf16")),
    "scores in fp8": _paged(_Flash(scores="fp8")),
    # With ordinary logits it is as small as rounding the weights.
    "scaled query rounded": _where(
        lambda q, kv_heads, scale: float(q.abs().amax()) > 100, _paged(_rounded_query)
    ),
    "output accumulated in bf16": _paged(_Flash(block=1, accumulator=torch.bfloat16)),
    # Inputs in bf16 are coarser.
    "output accumulated in fp16": _where(
        lambda q, kv_heads, scale: q.dtype == torch.float16,
        _paged(_Flash(block=1, accumulator=torch.float16)),
    ),
}

ADMITTED = {
    # One heavy weight rounds to fp8 with little error, and so does its score.
    "weights in fp8": ["one_sequence", "one_token_over", "large_logits"],
    # Scores of a few units are off by 0.01, their weights by a hundredth or less: so are weights
    # rounded to bf16, as tensor cores ask.
    "scores in bf16": ["one_sequence", "uneven", "one_token_over", "stale_pages", "mixed"],
    # Of 32,768 keys, the last 16 need not weigh.
    "last page left out": ["one_user"],
    "one token too few": ["one_user"],
    # The last key has nearly all weight, or a few keys have, and nothing is added to their sum.
    "output accumulated in bf16": ["one_sequence", "large_logits", "practice"],
    # Sums of values that nearly cancel, of equal weights, or of few keys, which fp16 holds.
    "output accumulated in fp16": ["full_pages", "equal_keys", "many_short"],
}
