"""What reads host memory the way that the copy engine reads a device's, but for its speed."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from grader.judge.integrity.call_order import BEFORE, GLANCES, MOST_READS, Lookout
from grader.judge.memory.shared_block import Block

Words = npt.NDArray[np.int64]


def host_words(address: int, *axes: tuple[int, int]) -> Words:
    """Words of host memory as they are and become; each axis has so many, so many bytes apart."""
    span = 8 + sum((count - 1) * apart for count, apart in axes)
    memory = (ctypes.c_char * span).from_address(address)
    counts, strides = zip(*axes, strict=True)
    return np.ndarray(counts, np.int64, memoryview(memory), 0, strides)


def words_at(block: Block, place: int) -> Words:
    """The word at this place of every set of a block in host memory."""
    each = block.tail_bytes // block.count
    return host_words(block.lent.data_ptr() + place, (block.count, each))


class MemoryLookout(Lookout):
    """Over a block in host memory."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._set_bytes = block.tail_bytes // block.count
        self._outputs = [(block.head_bytes + at, -(-nbytes // 8)) for at, nbytes in block.written]
        self._rows = np.zeros((MOST_READS + 2 * BEFORE, block.count), dtype=np.int64)
        self._peek: Any = SimpleNamespace(wait=lambda: None)
        self._pairs: Any = HostPairs(block.count - 1)
        self._glances: Any = HostGlances(block.count - 1)
        self._is_glancing = False
        self.took_us = 15.0
        """What every look at a seam took."""

    def _read_seam(self, turn: int, row: int) -> float:
        super()._read_seam(turn, row)
        return self.took_us

    def _read(self, places: list[int], row: int) -> None:
        for i, place in enumerate(places):
            self._rows[row + i] = words_at(self._block, place)
        self._wait()


class HostPairs:
    """Reads pairs of words."""

    def __init__(self, count: int) -> None:
        self.found = np.zeros((count, 2), dtype=np.int64)

    def aim(self, address: int, step_bytes: int, pitch_bytes: int) -> Words:
        return pairs_at(len(self.found), address, step_bytes, pitch_bytes)

    def read(self, aimed: Words) -> None:
        self.read_some(aimed, 0)

    def read_some(self, aimed: Words, first: int) -> None:
        self.found[first : first + len(aimed)] = aimed


class HostGlances:
    """Reads pairs of words several times at once, and lets them be seen when it was asked for them
    often enough. After so many times it never does."""

    def __init__(self, count: int) -> None:
        self.found = np.zeros((GLANCES, count, 2), dtype=np.int64)
        self.allowed, self.polls = 0, 1
        self.asked = 0
        self._left: int | None = None
        """How often it is to be asked still."""
        self._aimed: list[Words] = []

    def aim(self, places: list[tuple[int, int]], pitch_bytes: int) -> None:
        count, self._left = self.found.shape[1], None
        self._aimed = [pairs_at(count, address, step, pitch_bytes) for address, step in places]

    def read(self) -> None:
        assert self._left is None, "what was asked for is still under way"
        self.asked, self._left = self.asked + 1, self.polls
        for found, aimed in zip(self.found, self._aimed, strict=True):
            found[:] = aimed

    def are_there(self) -> bool:
        if self._left is not None and self.asked <= self.allowed:
            self._left = self._left - 1 if self._left > 1 else None
        return self._left is None

    def wait(self) -> None:
        if self.asked <= self.allowed:
            self._left = None


def pairs_at(count: int, address: int, step_bytes: int, pitch_bytes: int) -> Words:
    """Pairs of words as they are and become."""
    assert pitch_bytes % step_bytes == 0
    return host_words(address, (count, pitch_bytes), (2, step_bytes))
