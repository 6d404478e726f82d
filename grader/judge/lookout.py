"""Do the calls of a round run one after the other, and when is the last one done? The judge watches
their outputs appear.

A submission that starts a call while the one before it is still running hides the ends of its
kernels, and is faster only in a benchmark. While a round runs, the GPU's copy engine, which the
submission cannot hold up, reads a few words of every set's outputs again and again, at places
nobody could know. Calls that run in turn leave a later set untouched until an earlier one is whole.
Towards the end of the round the block is probed between the looks.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import numpy as np
import torch

from grader.judge.block import Block, blank_word
from grader.judge.late import LateInputs
from grader.judge.peek import MOST_PITCH_BYTES, Peek

ENDS, ANYWHERE = 3, 2
"""Places in every set that are read in turn: so many near the start of its outputs and as many near
the end, which is where neighbouring calls would meet, and so many anywhere."""
PLACES = 2 * ENDS + ANYWHERE
NEAR = 64
"""Near is within this part of an output tensor."""
BEFORE = 3
"""Words of every set that are read while inputs are being published: one near the start, one near
the end, one anywhere. Few, so that there is time for many looks; whoever began then has written
whole sets, and whoever began since the last look has won no more than that takes, and the 0.1 ms
before the end in which none is begun."""
CLOSING = 3
"""The block is probed from when the last call but so many, this one included, has begun: a call may
write all its outputs at its end."""
MOST_READS = 8192
SLOWEST_READ_US, BLIND_SHARE = 150.0, 0.1
"""A read takes some 15 µs, and with a probe up to 60. Of a round no more than this share, and once
so long, may pass without one: where calls overlap only meanwhile, they win less than half a
percent."""


class Lookout:
    """Watches the outputs of a block on a CUDA device."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._set_bytes = block.tail_bytes // block.count
        # The rest of a last word is guard, and lies there as it was.
        self._outputs = [(block.head_bytes + at, -(-nbytes // 8)) for at, nbytes in block.written]
        rows = MOST_READS + 2 * BEFORE
        self._peek = Peek(rows * block.count)
        self._seen = self._peek.words.view(rows, block.count)
        self._before: list[int] = []
        self._looks = 0
        self._looked: int | None = None
        """The row of the last look that counts; the next one is read beside it."""
        self._places: list[int] = []
        self._order = np.empty(0, dtype=np.int64)
        self._blank = np.empty((0, 0), dtype=np.int64)
        """What lies at each place of the sets in the round's order before they are called."""
        self._reads = 0
        self._watched_us = 0.0

    @classmethod
    def over(cls, block: Block) -> Lookout | None:
        """None where there is no copy engine, or it does not reach from set to set."""
        near_enough = block.tail_bytes // block.count < MOST_PITCH_BYTES
        return cls(block) if block.device == "cuda" and near_enough else None

    def aim(self, order: list[int]) -> None:
        """Choose new places for a round in this order, before the clock runs."""
        self._looks, self._looked, self._reads, self._watched_us = 0, None, 0, 0.0
        self._before = [*self._ends(), self._place(0, 1)]
        self._places = [place for _ in range(ENDS) for place in self._ends()]
        self._places += [self._place(0, 1) for _ in range(ANYWHERE)]
        self._order = np.array(order)
        self._blank = self._untouched(self._places).cpu().numpy()[:, self._order]

    def look(self, is_early: Callable[[], bool]) -> None:
        """Read some words; what they tell counts if it is still too early for a call after that."""
        row = MOST_READS if self._looked != MOST_READS else MOST_READS + BEFORE
        self._looks += 1
        self._read(self._before, row)
        if is_early():
            self._looked = row

    def watch(self, going_on: Callable[[], bool], late: LateInputs | None = None) -> None:
        """Read the places in turn, again and again, while the round is going on; and probe the
        block when it comes to its end. Between two looks, inputs that come late are written."""
        closing = max(0, len(self._order) - CLOSING)
        is_closing = False
        last_ns = time.perf_counter_ns()
        if late is not None:
            late.begin()
        while going_on() and self._reads < MOST_READS:
            # One at a time, so that near the end of a round the probes are close to each other.
            row, turn = self._reads, self._reads % PLACES
            if late is not None:
                late.write_due(self._peek, row)
            self._read([self._places[turn]], row)
            self._reads += 1
            furthest = self._furthest(row, turn)
            if late is not None:
                late.saw(furthest, is_closing)
            is_closing = is_closing or furthest >= closing
            if is_closing:
                self._block.keep_probing()
            now_ns = time.perf_counter_ns()
            if (now_ns - last_ns) / 1e3 <= SLOWEST_READ_US:
                self._watched_us += (now_ns - last_ns) / 1e3
            last_ns = now_ns
        if late is not None:
            late.write_rest(self._peek, is_over=self._reads < MOST_READS)

    def _furthest(self, row: int, turn: int) -> int:
        """The position of the last call that had begun in a look; -1 when none had."""
        begun = (self._seen[row].numpy()[self._order] != self._blank[turn]).nonzero()[0]
        return int(begun[-1]) if len(begun) else -1

    def has_begun(self, order: list[int]) -> bool:
        """Whether outputs had been written before the inputs were all there."""
        if self._looked is None:
            return False
        seen = self._seen[self._looked : self._looked + BEFORE].to(self._block.device)
        blank = blank_word(self._block.item_bytes)  # until the image is published, state too
        return bool(((seen != blank) & (seen != self._untouched(self._before)))[:, order].any())

    def was_blind(self, round_us: float) -> bool:
        """Whether it could not look before a round of so many microseconds, or hardly while it went
        on, as may be where somebody keeps the copy engine busy."""
        if self._looks and self._looked is None:
            return True
        missed_us = round_us - self._watched_us
        most_us = SLOWEST_READ_US + BLIND_SHARE * round_us
        return missed_us > most_us and self._reads < MOST_READS

    def side_by_side(self, order: list[int]) -> bool:
        """Whether a later call of `order` was seen to have begun before an earlier one ended.

        A set has begun when a word of it is no longer what it was, whatever it is; it has ended
        when all are what they stay. To be asked while the snapshot is of this round.
        """
        seen = self._seen[: self._reads].to(self._block.device)
        untouched = self._untouched(self._places)[self._turns()]
        return overlapped((seen != untouched)[:, order], self._unfinished(order))

    def first_unfinished(self, order: list[int]) -> list[int]:
        """For each look, the position of the first call that had not ended; as many as there are
        calls where all had. To be asked while the snapshot is of this round."""
        unfinished = self._unfinished(order)
        positions = torch.arange(len(order), device=unfinished.device)
        found: list[int] = torch.where(unfinished, positions, len(order)).amin(1).tolist()
        return found

    def _unfinished(self, order: list[int]) -> torch.Tensor:
        """Bool [looks, calls]: whether a call's word would change again."""
        seen = self._seen[: self._reads].to(self._block.device)
        done = self._words(self._block.snapshot, self._block.head_bytes, self._places)
        return (seen != done[self._turns()])[:, order]

    def _turns(self) -> torch.Tensor:
        """Which of the places each look was at."""
        return torch.arange(self._reads, device=self._block.device) % PLACES

    def _read(self, places: list[int], row: int) -> None:
        """Read places of every set once, one after the other, into rows from `row` on."""
        base = self._block.lent.data_ptr()
        for i, place in enumerate(places):
            at = (row + i) * self._block.count
            self._peek.read(base + place, self._set_bytes, self._block.count, at)
        self._peek.wait()

    def _untouched(self, places: list[int]) -> torch.Tensor:
        """What lies at these places of every set before it is called: poison, or its state."""
        block = self._block
        if block.item_bytes:
            word = blank_word(block.item_bytes)
            return torch.full((len(places), block.count), word, device=block.device)
        return self._words(block.image, 0, places)

    def _words(self, buffer: torch.Tensor, start: int, places: list[int]) -> torch.Tensor:
        """Words at these places of every set, in a buffer that begins at an offset of the block."""
        firsts = (torch.tensor(places, device=buffer.device) - start) // 8
        steps = torch.arange(self._block.count, device=buffer.device) * (self._set_bytes // 8)
        return buffer.view(torch.int64)[firsts[:, None] + steps]

    def _ends(self) -> tuple[int, int]:
        """A place near the start of an output, and one near the end."""
        return self._place(0, 1 / NEAR), self._place(1 - 1 / NEAR, 1)

    def _place(self, start: float, end: float) -> int:
        """An offset into the first set's outputs, between two shares of one of its tensors."""
        offset, words = secrets.choice(self._outputs)
        first = min(int(words * start), words - 1)
        return offset + 8 * (first + secrets.randbelow(max(1, int(words * end) - first)))


def overlapped(begun: torch.Tensor, unfinished: torch.Tensor) -> bool:
    """Whether in any look a call's word is unfinished though a later call had begun before.

    Both are bool [looks, calls], looks in the order of time, calls in the order of the round: of
    the word that was read, whether it had changed, and whether it would change again.
    """
    if begun.numel() == 0:
        return False
    positions = torch.arange(begun.shape[1], device=begun.device).expand_as(begun)
    furthest = torch.where(begun, positions, -1).amax(1).cummax(0).values
    before = torch.cat([furthest.new_full((1,), -1), furthest[:-1]])
    return bool((unfinished & (positions < before[:, None])).any())
