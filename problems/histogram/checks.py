"""Honest histograms, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Histogram = Callable[..., Tensor | None]

BLOCK = 1024
WARP = 32


def _count(index: Tensor, bins: int) -> Tensor:
    return torch.bincount(index.long().clamp(0, bins - 1), minlength=bins).int()


def _counts(x: Tensor, bins: int) -> Tensor:
    return _count((x * bins).floor(), bins)


def _private(x: Tensor, bins: int) -> Tensor:
    """A histogram for each of 8 parts, then their sum."""
    return torch.stack([_counts(part, bins) for part in x.chunk(8)]).sum(0).int()


def _by_sorting(x: Tensor, bins: int) -> Tensor:
    """The sorted numbers, cut at the edges."""
    edges = torch.arange(1, bins, device=x.device) / bins
    ends = torch.searchsorted(x.sort().values, edges)
    ends = torch.cat([ends, ends.new_tensor([len(x)])])
    return ends.diff(prepend=ends.new_zeros(1)).int()


HONEST: dict[str, Histogram] = {"private histograms": _private, "by sorting": _by_sorting}


def _rounded(x: Tensor, bins: int) -> Tensor:
    """The nearest edge instead of the one below."""
    return _count((x * bins).round(), bins)


def _edges_below(x: Tensor, bins: int) -> Tensor:
    """A number on an edge counts in the bin below."""
    return _count((x * bins).ceil() - 1, bins)


def _of_narrow(dtype: torch.dtype) -> Histogram:
    """Numbers rounded to 16 bits first: some reach the next bin."""
    return lambda x, bins: _counts(x.to(dtype).float(), bins)


def _without_ones(x: Tensor, bins: int) -> Tensor:
    """The right edge belongs to no bin."""
    return _counts(x[x < 1], bins)


def _whole_blocks(x: Tensor, bins: int) -> Tensor:
    return _counts(x[: len(x) - len(x) % BLOCK], bins)


def _narrow_counters(bits: int) -> Histogram:
    """Private counters that overflow."""
    return lambda x, bins: _counts(x, bins) % (1 << bits)


def _lost_updates(x: Tensor, bins: int) -> Tensor:
    """Without atomics: equal bins of a warp count once."""
    index = (x * bins).floor().long().clamp(0, bins - 1)
    index = torch.nn.functional.pad(index, (0, -len(x) % WARP), value=bins)
    warps = index.view(-1, WARP).sort(dim=1).values
    is_first = torch.ones_like(warps, dtype=torch.bool)
    is_first[:, 1:] = warps[:, 1:] != warps[:, :-1]
    return torch.bincount(warps[is_first], minlength=bins + 1)[:bins].int()


def _one_bin_on(x: Tensor, bins: int) -> Tensor:
    return _counts(x, bins).roll(1)


MUTANTS: dict[str, Histogram] = {
    "nearest edge": _rounded,
    "edges in the bin below": _edges_below,
    "numbers in fp16": _of_narrow(torch.float16),
    "numbers in bf16": _of_narrow(torch.bfloat16),
    "ones left out": _without_ones,
    "tail left out": _whole_blocks,
    "counters of 8 bits": _narrow_counters(8),
    "counters of 16 bits": _narrow_counters(16),
    "updates lost": _lost_updates,
    "one bin on": _one_bin_on,
}
