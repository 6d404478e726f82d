"""Ways to unpack int4 codes that are right, and ways that are not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Unpack = Callable[[Tensor], Tensor]


def _unpack(packed: Tensor) -> Tensor:
    """Unsigned codes, int16 [rows, cols]."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(start_dim=1).short()


def _by_table(packed: Tensor) -> Tensor:
    """A table of the two codes of each byte."""
    every = torch.arange(256, dtype=torch.uint8, device=packed.device)[:, None]
    table = (_unpack(every) - 8).to(torch.int8)
    return table[packed.long()].flatten(start_dim=1)


def _by_words(packed: Tensor) -> Tensor:
    """A word of 16 bits for each byte, less 8 in both halves."""
    words = packed.int()
    spread = (words & 0xF | (words & 0xF0) << 4) + 0x7878
    return spread.to(torch.int16).view(torch.int8) ^ -128


HONEST: dict[str, Unpack] = {"by table": _by_table, "by words of 16 bits": _by_words}

MUTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "swapped nibbles": lambda packed: (_unpack(packed << 4 | packed >> 4) - 8).to(torch.int8),
    "unsigned codes": lambda packed: _unpack(packed).to(torch.int8),
    "less 7": lambda packed: (_unpack(packed) - 7).to(torch.int8),
    "two's complement": lambda packed: ((_unpack(packed) ^ 8) - 8).to(torch.int8),
    "-8 taken for -7": lambda packed: (_unpack(packed) - 8).clamp(min=-7).to(torch.int8),
    "high nibble with its neighbour's bits": lambda packed: (
        torch.stack((packed & 0xF, packed >> 3), dim=-1).flatten(start_dim=1).to(torch.int8) - 8
    ),
    "low nibbles first, then high ones": lambda packed: (
        torch.cat((packed & 0xF, packed >> 4), dim=1).to(torch.int8) - 8
    ),
}
ADMITTED = {
    # They hold no -8, or two equal codes.
    "-8 taken for -7": ["one_byte", "all_equal"],
}
