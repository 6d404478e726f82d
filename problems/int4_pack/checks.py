"""Ways to pack int4 codes that are right, and ways that are not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Pack = Callable[[Tensor], Tensor]


def _pack(biased: Tensor) -> Tensor:
    """Integers of any dtype, of which the lowest 4 bits count."""
    bits = biased.int() & 0xF
    return (bits[:, 0::2] | bits[:, 1::2] << 4).byte()


def _flipped_sign(codes: Tensor) -> Tensor:
    """Two's complement, whose sign bit is the opposite of the bias' highest."""
    return _pack((codes.clamp(-8, 7) & 0xF) ^ 8)


def _by_words(codes: Tensor) -> Tensor:
    """Two codes of a 16-bit word at a time."""
    words = (codes.clamp(-8, 7) + 8).view(torch.int16).int()
    return (words | words >> 4).to(torch.uint8)


HONEST: dict[str, Pack] = {"sign bit flipped": _flipped_sign, "by words of 16 bits": _by_words}


def _where_beyond(pack: Pack) -> Callable[[Tensor], Tensor | None]:
    """Only for codes that must be saturated."""
    return lambda codes: pack(codes) if bool((codes != codes.clamp(-8, 7)).any()) else None


MUTANTS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "swapped nibbles": lambda codes: _pack(
        codes.clamp(-8, 7).int().unflatten(1, (-1, 2)).flip(2).flatten(1) + 8
    ),
    "two's complement": lambda codes: _pack(codes.clamp(-8, 7)),
    "plus 7": lambda codes: _pack(codes.clamp(-8, 7).int() + 7),
    "halves of a row in a byte": lambda codes: _pack(
        codes.clamp(-8, 7).int().unflatten(1, (2, -1)).transpose(1, 2).flatten(1) + 8
    ),
    "saturated at -7": lambda codes: _pack(codes.int().clamp(-7, 7) + 8),
    "no saturation": _where_beyond(lambda codes: _pack(codes.int() + 8)),
    "saturated above only": _where_beyond(lambda codes: _pack(codes.int().clamp(max=7) + 8)),
    "saturated below only": _where_beyond(lambda codes: _pack(codes.int().clamp(min=-8) + 8)),
    "saturated after a bias in 8 bits": _where_beyond(
        lambda codes: _pack((codes.view(torch.uint8) + 8).clamp(max=15))
    ),
}
ADMITTED = {
    # They hold no -8, or no code beyond one end.
    "saturated at -7": ["one_byte", "all_equal"],
    "saturated above only": ["all_equal"],
    "saturated below only": ["all_equal"],
    "saturated after a bias in 8 bits": ["all_equal"],
}
