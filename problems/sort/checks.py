"""Honest sorts, which the check must accept, and broken ones, which it must reject."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grader.numerics import of_rounded_inputs

TILE = 1024
DIGIT_BITS = 8
KEY_BITS = 32


def _sort(x: Tensor) -> Tensor:
    return x.sort().values


def _keys(x: Tensor) -> Tensor:
    """Whole numbers, int64, in the order of the floating-point numbers: the bits of positive ones
    with the sign set, those of negative ones turned over."""
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    return torch.where(bits >> 31 == 1, 0xFFFFFFFF - bits, bits | 0x80000000)


def _numbers(keys: Tensor) -> Tensor:
    bits = torch.where(keys >> 31 == 1, keys & 0x7FFFFFFF, 0xFFFFFFFF - keys)
    return bits.int().view(torch.float32)


def _radix(x: Tensor, passes: int = KEY_BITS // DIGIT_BITS) -> Tensor:
    """Digit by digit, the last one first, each pass stable."""
    keys = _keys(x)
    for digit in range(passes):
        keys = keys[(keys >> (digit * DIGIT_BITS) & 0xFF).sort(stable=True).indices]
    return _numbers(keys)


def _by_merging(x: Tensor) -> Tensor:
    """Tiles, sorted and merged: here all at once."""
    tiles = torch.cat([tile.sort().values for tile in x.split(TILE)])
    return tiles.sort(stable=True).values


HONEST: dict[str, Callable[[Tensor], Tensor]] = {
    "radix": lambda x: _radix(x),
    "by merging": _by_merging,
    "negated, descending": lambda x: -(-x).sort(descending=True).values,
}


def _as_unsigned(x: Tensor) -> Tensor:
    """Bits compared as they are: negative numbers come last, and in the wrong order."""
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    return x[bits.sort(stable=True).indices]


def _tiles_only(x: Tensor) -> Tensor:
    return torch.cat([tile.sort().values for tile in x.split(TILE)])


def _padded_with_zeros(x: Tensor) -> Tensor | None:
    """Filled up to a power of two with zeros instead of infinity, which then push numbers out."""
    missing = (1 << (len(x) - 1).bit_length()) - len(x)
    padded = torch.nn.functional.pad(x, (0, missing))
    return padded.sort().values[: len(x)] if missing else None


def _neighbour_lost(x: Tensor) -> Tensor:
    """One number in the place of another: still sorted, no longer the same numbers."""
    out = _sort(x)
    out[len(out) // 2] = out[len(out) // 2 - 1]
    return out


MUTANTS: dict[str, Callable[..., Tensor | None]] = {
    "not sorted": lambda x: x.clone(),
    "descending": lambda x: _sort(x).flip(0),
    "by magnitude": lambda x: x[x.abs().sort(stable=True).indices],
    "bits as unsigned": _as_unsigned,
    "one pass too few": lambda x: _radix(x, passes=3),
    "tiles only": _tiles_only,
    "padded with zeros": _padded_with_zeros,
    "one number twice": _neighbour_lost,
    "in bf16": of_rounded_inputs(_sort, "bf16"),
    "in TF32": of_rounded_inputs(_sort, "tf32"),
}
