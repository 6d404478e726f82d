"""Tensors in pieces, so that what is computed of a large one in float64 is smaller than it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

MOST_ELEMENTS = 1 << 26
"""Elements of a piece: half a gigabyte in float64. Sums over several pieces may differ from those
over the whole by their last few bits; most tensors are one piece."""


def pieces(*tensors: torch.Tensor, elements: int = 0) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same places of tensors of one size, in order, as vectors of at most `elements`, or
    `MOST_ELEMENTS`. Those of contiguous tensors are views."""
    flat = (tensor.reshape(-1).split(elements or MOST_ELEMENTS) for tensor in tensors)
    return zip(*flat, strict=True)
