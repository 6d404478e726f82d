"""Inputs of paged attention: one query a sequence, a pool of pages, and which pages are whose."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
QUERY_SIZE = {"peaked": 3.0, "large": 60.0}
"""Size of a query's entries, which is also the standard deviation of its logits; else 1."""
OWN_KEY = 0.75
"""Share of the last key in a query that points at it."""
STALE_SIZE = 3.0
"""Size of the entries that another sequence left behind: large enough to weigh a lot."""


def generate(
    generator: torch.Generator,
    call: int,
    *,
    batch: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    max_len: int,
    tokens: int,
    dtype: str,
    values: str,
    scale: float | None = None,
) -> dict[str, Tensor | float]:
    """`q` [batch, heads, head_dim], `k_pages` and `v_pages` [pages, page_size, kv_heads, head_dim],
    `block_table` [batch, pages of the longest], `lengths` [batch].

    The lengths are random, add up to `tokens`, and the longest is `max_len`. Pages are handed out
    in random order, none to two sequences; entries of the block table beyond a sequence's pages
    name a page of no sequence. Where no token is, pages hold NaN. `values`: ``normal``;
    ``peaked`` (few keys count, so that each one matters); ``large`` (logits far beyond 88);
    ``equal`` (all keys of a sequence alike: the mean of its values); ``last`` (the last key weighs
    most); ``stale`` (pages hold large numbers where no token is, as a former sequence leaves
    them). `scale` is ``head_dim ** -0.5`` unless given.
    """
    device = generator.device

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    pages = tokens // page_size + batch + 1
    lengths = _lengths(generator, batch, max_len, tokens)
    block_table = _block_table(generator, lengths, pages, page_size, max_len)
    sequence, slot, last = _places(block_table, lengths, page_size)
    q = normal(batch, heads, head_dim) * QUERY_SIZE.get(values, 1.0)
    k, v = (normal(pages * page_size, kv_heads, head_dim).to(DTYPES[dtype]) for _ in range(2))
    if values == "equal":
        k[slot] = k[last][sequence]
    elif values == "last":
        q = k[last].float().repeat_interleave(heads // kv_heads, dim=1) * OWN_KEY
    is_unused = torch.ones(len(k), dtype=torch.bool, device=device)
    is_unused[slot] = False
    for cache in (k, v):
        if values == "stale":
            cache[is_unused] *= STALE_SIZE
        else:
            cache[is_unused] = torch.nan
    return {
        "q": q.to(DTYPES[dtype]),
        "k_pages": k.unflatten(0, (pages, page_size)),
        "v_pages": v.unflatten(0, (pages, page_size)),
        "block_table": block_table,
        "lengths": lengths,
        "scale": head_dim**-0.5 if scale is None else scale,
    }


def _lengths(generator: torch.Generator, batch: int, max_len: int, tokens: int) -> Tensor:
    """Lengths from 1 to `max_len`, which one sequence has, int32 [batch]; their sum is `tokens`."""
    device = generator.device
    shares = torch.rand(batch, generator=generator, device=device).tolist()
    drawn, left = [max_len], tokens - max_len
    for others in range(batch - 2, -1, -1):
        least = max(1, left - others * max_len)
        # Up to twice the mean, so that the last ones are not all of length 1.
        most = min(max_len, left - others, 2 * left // (others + 1))
        drawn.append(least + int(shares[others] * (most - least + 1)))
        left -= drawn[-1]
    order = torch.randperm(batch, generator=generator, device=device)
    return torch.tensor(drawn, dtype=torch.int32, device=device)[order]


def _block_table(
    generator: torch.Generator, lengths: Tensor, pages: int, page_size: int, max_len: int
) -> Tensor:
    """Page of every `page_size` tokens of each sequence, int32 [batch, pages of the longest]."""
    order = torch.randperm(pages, generator=generator, device=generator.device)
    columns = torch.arange(-(-max_len // page_size), device=lengths.device)
    is_used = columns * page_size < lengths[:, None]
    table = torch.full(is_used.shape, 0, dtype=torch.int32, device=lengths.device)
    used = int(is_used.sum())
    table[is_used] = order[:used].int()
    table[~is_used] = order[used].int()
    return table


def _places(block_table: Tensor, lengths: Tensor, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of every token: its sequence, and its slot in the pool; and the slot of each last token."""
    within = torch.arange(page_size, device=lengths.device)
    slots = (block_table.long()[:, :, None] * page_size + within).flatten(1)
    is_token = torch.arange(slots.shape[1], device=lengths.device) < lengths[:, None]
    sequence = is_token.nonzero()[:, 0]
    last = slots.gather(1, lengths.long()[:, None] - 1)[:, 0]
    return sequence, slots[is_token], last
