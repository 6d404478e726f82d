"""The histogram of numbers from 0 to 1, and what PyTorch users write for it."""

from __future__ import annotations

import torch
from torch import Tensor


def bin_of(x: Tensor, bins: int) -> Tensor:
    """The bin, int64, of each number. 1 lies in the last. The product is exact, since the number of
    bins is a power of two."""
    return (x * bins).floor().long().clamp(0, bins - 1)


def reference(x: Tensor, bins: int) -> Tensor:
    """The counts, int32 [bins], of `x` [n]."""
    return torch.bincount(bin_of(x, bins), minlength=bins).int()


def eager(x: Tensor, bins: int) -> Tensor:
    """What a PyTorch user writes where the host may not wait: `bincount` looks for the largest bin
    first, and `histc` counts in fp32, which ends at 2^24."""
    counts = torch.zeros(bins, dtype=torch.int32, device=x.device)
    index = bin_of(x, bins)
    return counts.scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32))


def bincount(x: Tensor, bins: int) -> Tensor:
    """The operator that is made for it."""
    return torch.bincount(bin_of(x, bins), minlength=bins).int()


BASELINES = {"bincount": bincount}
