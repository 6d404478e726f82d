"""Doubles of a GPU's copy engine that read and write host memory, and a clock for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from grader.judge.gpu.dma import CopyEngine, PairReader
from grader.judge.integrity.call_order import CallOrderWatch, words_needed
from grader.judge.integrity.policy import CALL_ORDER
from grader.judge.memory.shared_block import SharedBlock

Words = npt.NDArray[np.int64]


class HostCopyEngine(CopyEngine):
    """Copies host memory at once."""

    def __init__(self, capacity: int) -> None:
        self.words = torch.zeros(capacity, dtype=torch.int64)

    def read(self, address: int, pitch_bytes: int, count: int, at: int) -> None:
        self.words.numpy()[at : at + count] = host_words(address, (count, pitch_bytes))

    def write(self, rows: torch.Tensor, address: int, pitch_bytes: int) -> None:
        for i, row in enumerate(rows):
            ctypes.memmove(address + i * pitch_bytes, row.data_ptr(), row.numel())

    def wait(self) -> None: ...


class HostPairReader(PairReader):
    """Reads pairs of host words, one copy after the other."""

    def __init__(self, times: int, count: int) -> None:
        self.found = np.zeros((times, count, 2), dtype=np.int64)
        self.places: list[tuple[int, int]] = []
        """What `prepare` received: of each copy the address, and the distance of a pair's words."""
        self.reads = 0
        """How often `read` was called."""
        self.before_pair: Callable[[int, int], None] | None = None
        """Called with the numbers of a copy and a pair before each pair is read."""
        self._memory: list[Words] = []

    def prepare(self, places: list[tuple[int, int]], pitch_bytes: int) -> None:
        times, count, _ = self.found.shape
        assert len(places) == times
        assert all(pitch_bytes % step_bytes == 0 for _, step_bytes in places)
        self.places = places
        self._memory = [
            host_words(address, (count, pitch_bytes), (2, step_bytes))
            for address, step_bytes in places
        ]

    def read(self) -> None:
        self.reads += 1
        for copy, memory in enumerate(self._memory):
            if self.before_pair is None:
                self.found[copy] = memory
                continue
            for pair in range(len(memory)):
                self.before_pair(copy, pair)
                self.found[copy, pair] = memory[pair]


class Clock:
    """Stands for the module `time` of the modules that it is given to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
        self.now_us = 0.0
        for module in modules:
            time = SimpleNamespace(perf_counter_ns=lambda: int(self.read_us() * 1e3))
            monkeypatch.setattr(f"grader.judge.integrity.{module}.time", time)

    def read_us(self) -> float:
        return self.now_us


def host_watch(
    block: SharedBlock, copies: HostCopyEngine | None = None, reader: HostPairReader | None = None
) -> CallOrderWatch:
    """A watch over a block in host memory."""
    return CallOrderWatch(
        block,
        copies or HostCopyEngine(words_needed(block)),
        reader or HostPairReader(CALL_ORDER.pairs, block.count - 1),
    )


def host_words(address: int, *axes: tuple[int, int]) -> Words:
    """A live view of words of host memory; each axis is (count, distance in bytes)."""
    span = 8 + sum((count - 1) * distance for count, distance in axes)
    memory = (ctypes.c_char * span).from_address(address)
    counts, strides = zip(*axes, strict=True)
    return np.ndarray(counts, np.int64, memoryview(memory), 0, strides)
