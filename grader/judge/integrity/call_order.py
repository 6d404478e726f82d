"""Do the calls of a round run one after the other, and when is the last one done? The judge watches
their outputs appear.

A submission that starts a call while the one before it is still running hides the ends of its
kernels, and is faster only in a benchmark. While a round runs, the GPU's copy engine, which the
submission cannot hold up, reads a few words of every set's outputs again and again, at places
nobody could know. Calls that run in turn leave a later set untouched until an earlier one is whole.
Looks are 20 to 60 µs apart, and calls that share a launch overlap for a few microseconds only; so
every other look is at a seam: a word near the end of every set, and at the same time one near the
start of the next. For that each call's set lies behind the one before it, but for one place where
calls go on with the first set. And while a look is waited for, there is a burst of glances at
seams, directly after one another. Towards the end of the round the block is probed between looks.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from grader.judge.gpu.dma import MOST_PITCH_BYTES, Glances, PairPeek, Peek
from grader.judge.integrity.deferred_inputs import LateInputs
from grader.judge.memory.shared_block import Block, blank_word

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.int64]

NEAR = 64
"""Near is within this part of an output tensor; and of a set, where there is room for it."""
PARTS = (NEAR, NEAR // 2, NEAR // 4)
"""Of looks at a seam: the two words are as far apart as one of so many parts of a set is long."""
SINGLES = 3
"""Of looks at one place in every set: one near the start of an output, one near the end, and one
anywhere."""
PLACES = 2 * len(PARTS) + SINGLES
"""Places that are read in turn; at a seam two in one look."""
TRIES = 16
"""So many words are drawn until both of a seam lie in outputs, and not between two of them."""
BEFORE = 3
"""Words of every set that are read while inputs are being published: one near the start, one near
the end, one anywhere. Few, so that there is time for many looks; whoever began then has written
whole sets, and whoever began since the last look has won no more than that takes, and the 0.1 ms
before the end in which none is begun."""
CLOSING = 3
"""The block is probed from when the last call but so many, this one included, has begun: a call may
write all its outputs at its end."""
GLANCES, MOST_BURSTS = 4, 4096
"""A burst has so many; asking takes 3 µs each, and they follow each other by as much. So many
bursts are kept of a round. They are no part of the order that looks are in. There are none once the
third last call has begun, since probes would wait for them; nor behind a write of inputs that come
late, which would then come later still."""
LOST_SHARE = 1 / 2
"""Of a round no more than this share may pass with bursts that are lost: else whoever holds up each
copy, for less than a look may take, would not be glanced at."""
MOST_READS = 8192
"""Rows of words that are kept of a round; a look at a seam has two."""
SLOWEST_READ_US, BLIND_SHARE = 150.0, 0.1
"""A read takes some 15 µs, and with a probe up to 60. Of a round no more than this share, and once
so long, may pass without one: where calls overlap only meanwhile, they win 1.6 % of the shortest
rounds and half a percent of long ones, by the most that overlapping ever won."""


@dataclass(frozen=True, eq=False)
class Burst:
    """Glances at seams that were asked for at once."""

    asked: int
    """The row of the look that they were asked for beside."""
    over: int
    """That of the next look that was asked for when they were found to be there."""
    found: Words
    """int64 [GLANCES, sets - 1, 2]: of each seam the word near the end and that near the start."""


class Lookout:
    """Watches the outputs of a block on a CUDA device."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._set_bytes = block.tail_bytes // block.count
        # The rest of a last word is guard, and lies there as it was.
        self._outputs = [(block.head_bytes + at, -(-nbytes // 8)) for at, nbytes in block.written]
        rows = MOST_READS + 2 * BEFORE
        self._peek = Peek(rows * block.count)
        self._rows = self._peek.words.view(rows, block.count).numpy()
        self._pairs = PairPeek(self._peek, block.count - 1)
        self._glances = Glances(GLANCES, block.count - 1)
        self._is_glancing = False
        """Whether bursts may be asked for: while a round is watched, and until probes follow."""
        self._is_quiet = False
        """Whether none is to be asked for beside this look."""
        self._asked: tuple[int, int] | None = None
        """Of the burst that is under way, the row of the look that it was asked for beside, and
        when, nanoseconds."""
        self._bursts: list[Burst] = []
        self.lost_bursts = 0
        """How many of the last round took too long;"""
        self._lost_us = 0.0
        """and how long they took together."""
        self._before: list[int] = []
        self._looks = 0
        self._looked: int | None = None
        """The row of the last look that counts; the next one is read beside it."""
        self._singles = 0
        """How many of the next are of seams;"""
        self._seams = range(0)
        """and which of them are near the end of a set, where a seam is."""
        self._aimed: dict[int, Any] = {}
        """What reads each seam."""
        self._places: list[int] = []
        """First the two of each seam, the one near the end of a set before the other, and then the
        single ones."""
        self._turns: list[int] = []
        """Which of the places each row is of."""
        self._held_up: set[int] = set()
        """Rows of looks at seams which took so long, with asking for the burst beside, that the
        copy may have stopped in its midst."""
        self._order = np.empty(0, dtype=np.int64)
        self._blank = self._blank_before = np.empty((0, 0), dtype=np.int64)
        """What lies at each place of every set before they are called; and where is looked while
        inputs are being published."""
        self._states: tuple[Bools, Bools] | None = None
        self._done: Words | None = None
        """What was made of the last round, and what lies at each place since."""
        self._watched_us = 0.0

    @classmethod
    def over(cls, block: Block) -> Lookout | None:
        """None where there is no copy engine, or it does not reach from set to set."""
        near_enough = cls.reaches(block.tail_bytes // block.count)
        return cls(block) if block.device == "cuda" and near_enough else None

    @staticmethod
    def reaches(set_bytes: int) -> bool:
        """Whether the copy engine reaches from one set to the next, where a call may write so many
        bytes of each."""
        return set_bytes < MOST_PITCH_BYTES

    def aim(self, order: list[int]) -> None:
        """Choose new places for a round in this order, before the clock runs."""
        self._looks, self._looked, self._turns, self._watched_us = 0, None, [], 0.0
        self._states, self._done, self._held_up = None, None, set()
        self._asked, self._bursts, self.lost_bursts, self._lost_us = None, [], 0, 0.0
        self._before = [*self._ends(), self._place(0, 1)]
        # The ends and starts of sets that are far apart are not read at the same time.
        is_turned = len(order) > 1 and order == turned(self._block.count, order[0])
        seams = [self._seam(parts) for parts in PARTS] if is_turned else []
        self._places = [place for seam in seams if seam is not None for place in seam]
        self._singles = len(self._places)
        self._seams = range(0, self._singles, 2)
        self._places += [*self._ends(), self._place(0, 1)]
        self._order = np.array(order)
        at_seams = {turn: self._at_seam(turn) for turn in self._seams}
        self._aimed = {
            turn: self._pairs.aim(*place, self._set_bytes) for turn, place in at_seams.items()
        }
        if self._seams:
            self._glances.aim([at_seams[turn] for turn in self._glance_turns()], self._set_bytes)
        blank = self._untouched([*self._places, *self._before]).cpu().numpy()
        self._blank, self._blank_before = np.split(blank, [len(self._places)])

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
        singles = itertools.cycle(range(self._singles, len(self._places)))
        seams = itertools.cycle(self._seams) if self._singles else None
        last_ns = time.perf_counter_ns()
        if late is not None:
            late.begin()
        self._is_glancing = self._singles > 0
        for look in itertools.count():
            if not going_on() or self._is_full:
                break
            # At one place each near the end of a round, so that probes are close to each other.
            at_seam = seams is not None and look % 2 == 0 and not is_closing
            turn = next(seams) if at_seam and seams is not None else next(singles)
            row = len(self._turns)
            self._take_burst()  # first, since what is due may be waited for
            self._is_quiet = late is not None and late.write_due(self._peek, row)
            if at_seam:
                if self._read_seam(turn, row) > SLOWEST_READ_US:
                    self._held_up.add(row)
                self._turns += [turn, turn + 1]
            else:
                self._read([self._places[turn]], row)
                self._turns.append(turn)
            furthest = self._furthest(row + at_seam, turn + at_seam)
            if late is not None:
                late.saw(furthest, is_closing)
            is_closing = is_closing or furthest >= closing
            if is_closing:
                self._is_glancing = False  # a probe would wait for them
                self._block.keep_probing()
            now_ns = time.perf_counter_ns()
            if (now_ns - last_ns) / 1e3 <= SLOWEST_READ_US:
                self._watched_us += (now_ns - last_ns) / 1e3
            last_ns = now_ns
        self._is_glancing = False
        if late is not None:
            late.write_rest(self._peek, is_over=not self._is_full)
        self._glances.wait()
        self._take_burst()

    @property
    def kept_bursts(self) -> int:
        """How many bursts of glances count of the last round."""
        return len(self._bursts)

    @property
    def _is_full(self) -> bool:
        """Whether there is no room for the rows of another look."""
        return len(self._turns) > MOST_READS - 2

    def _furthest(self, row: int, turn: int) -> int:
        """The position of the last call that had begun in a look; -1 when none had."""
        begun = (self._rows[row] != self._blank[turn])[self._order]
        from_the_end = int(begun[::-1].argmax())  # of the first that is true; 0 where none is
        last = len(begun) - 1 - from_the_end
        return last if begun[last] else -1

    def has_begun(self, order: list[int]) -> bool:
        """Whether outputs had been written before the inputs were all there."""
        if self._looked is None:
            return False
        seen = self._rows[self._looked : self._looked + BEFORE]
        blank = blank_word(self._block.item_bytes)  # until the image is published, state too
        return bool(((seen != blank) & (seen != self._blank_before))[:, order].any())

    def was_blind(self, round_us: float) -> bool:
        """Whether it could not look before a round of so many microseconds, or could hardly look or
        glance while it went on, as may be where somebody keeps the copy engine busy."""
        if self._looks and self._looked is None:
            return True
        if self._lost_us > LOST_SHARE * round_us:
            return True
        missed_us = round_us - self._watched_us
        most_us = SLOWEST_READ_US + BLIND_SHARE * round_us
        return missed_us > most_us and not self._is_full

    def side_by_side(self) -> bool:
        """Whether a later call of the round was seen to have begun before an earlier one ended.

        A set has begun when a word of it is no longer what it was, whatever it is; it has ended
        when all are what they stay. What one look tells by itself is left to `meetings`. To be
        asked while the snapshot is of this round.
        """
        return overlapped(*self._begun_and_unfinished(), self._at_seams() + 1)

    def first_unfinished(self) -> list[int]:
        """For each look, the position of the first call that had not ended; as many as there are
        calls where all had. To be asked while the snapshot is of this round."""
        _, unfinished = self._begun_and_unfinished()
        first = np.where(unfinished.any(1), unfinished.argmax(1), len(self._order))
        found: list[int] = first.tolist()
        return found

    def meetings(self) -> int:
        """How often looks at a seam, or bursts of glances, found that a call had not ended though
        a later one of the round had begun. What was under way at the same time, and so may have
        been held up by one and the same, counts once; what took long tells nothing. To be asked
        while the snapshot is of this round."""
        begun, unfinished = self._begun_and_unfinished()
        rows = np.array([row for row in self._at_seams() if row not in self._held_up], np.int64)
        told = rows[_tells(begun[rows + 1], unfinished[rows])]
        glances_tell = _tells(*self._glanced_states()).reshape(-1, GLANCES)
        # A burst is found to be over, then a look is asked for, then the next burst is.
        spans = [(2 * row, 2 * row + 1) for row in told.tolist()]
        spans += [
            (2 * burst.asked + 1, 2 * burst.over - 1)
            for burst, tell in zip(self._bursts, glances_tell, strict=True)
            if tell.any()
        ]
        return _apart(spans)

    def _at_seams(self) -> npt.NDArray[np.int64]:
        """The first rows of looks at seams, which are of words near the end of a set."""
        rows = [row for row, turn in enumerate(self._turns) if turn in self._seams]
        return np.array(rows, dtype=np.int64)

    def _begun_and_unfinished(self) -> tuple[Bools, Bools]:
        """Bool [rows, calls] twice: whether a call's word is no longer what it was, and whether it
        would change again. Made once for a round, and not on the device: there is little of it."""
        if self._states is None:
            turns = np.array(self._turns, dtype=np.int64)
            seen = self._rows[: len(turns)]
            begun, unfinished = seen != self._blank[turns], seen != self._done_words()[turns]
            if self._singles:  # of the last set and of the first one nothing is read there
                rows = self._at_seams()
                unfinished[rows, -1] = unfinished[rows + 1, 0] = False
            self._states = begun[:, self._order], unfinished[:, self._order]
        return self._states

    def _glanced_states(self) -> tuple[Bools, Bools]:
        """The same of glances, bool [glances, calls]: whether a call's word near its start is no
        longer what it was, and whether that near its end would change again."""
        shape = (GLANCES * len(self._bursts), self._block.count)
        begun, unfinished = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        if self._bursts:
            turns = np.array([*self._glance_turns()] * len(self._bursts), np.int64)
            seen = np.concatenate([burst.found for burst in self._bursts])
            begun[:, 1:] = seen[:, :, 1] != self._blank[turns + 1, 1:]
            unfinished[:, :-1] = seen[:, :, 0] != self._done_words()[turns, :-1]
        return begun[:, self._order], unfinished[:, self._order]

    def _done_words(self) -> Words:
        """What lies at each place of every set when the round is over."""
        if self._done is None:
            block = self._block
            self._done = self._words(block.snapshot, block.head_bytes, self._places).cpu().numpy()
        return self._done

    def _glance_turns(self) -> Iterator[int]:
        """Which of the places each glance is of, and the one behind it."""
        return itertools.islice(itertools.cycle(self._seams), GLANCES)

    def _wait(self) -> None:
        """Until what was asked for is there. Meanwhile a burst is begun, if none is under way."""
        may_ask = self._is_glancing and not self._is_quiet and self._asked is None
        if may_ask and len(self._bursts) < MOST_BURSTS:
            self._asked = len(self._turns), time.perf_counter_ns()
            self._glances.read()
        self._peek.wait()

    def _take_burst(self) -> None:
        """Keep what is there of a burst, unless it took so long that a copy may have stopped in its
        midst."""
        if self._asked is None or not self._glances.are_there():
            return
        row, asked_ns = self._asked
        self._asked = None
        took_us = (time.perf_counter_ns() - asked_ns) / 1e3
        if took_us <= SLOWEST_READ_US:
            self._bursts.append(Burst(row, len(self._turns), self._glances.found.copy()))
        else:
            self.lost_bursts += 1
            self._lost_us += took_us

    def _read(self, places: list[int], row: int) -> None:
        """Read places of every set once, one after the other, into rows from `row` on."""
        base = self._block.lent.data_ptr()
        for i, place in enumerate(places):
            at = (row + i) * self._block.count
            self._peek.read(base + place, self._set_bytes, self._block.count, at)
        self._wait()

    def _read_seam(self, turn: int, row: int) -> float:
        """Read both places of a seam at once: into one row the words near the end of every set but
        the last, and into the next those near the start of every set but the first. What is not
        read is left as if untouched. Microseconds that the copy took.

        The copy reads the end of each set directly before the start of the next, as a rule within
        0.1 µs, and all of them within 4 µs (`benchmarks/looks.py`).
        """
        start_ns = time.perf_counter_ns()
        self._pairs.read(self._aimed[turn])
        self._wait()
        took_us = (time.perf_counter_ns() - start_ns) / 1e3
        self._rows[row, :-1] = self._pairs.found[:, 0]
        self._rows[row, -1] = self._blank[turn, -1]
        self._rows[row + 1, 0] = self._blank[turn + 1, 0]
        self._rows[row + 1, 1:] = self._pairs.found[:, 1]
        return took_us

    def _at_seam(self, turn: int) -> tuple[int, int]:
        """The address of the first word near the end of a set, at this seam, and how far behind it
        the one near the start of the next set lies."""
        end, start = self._places[turn : turn + 2]
        return self._block.lent.data_ptr() + end, start + self._set_bytes - end

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

    def _seam(self, parts: int) -> tuple[int, int] | None:
        """A place in the last of so many parts of a set, or fewer, and one in the first, as far
        behind the last one of the set before as a part is long. None where outputs are too small.
        """
        outputs = [(at, at + 8 * words) for at, words in self._outputs]
        first, behind = self._block.head_bytes, max(end for _, end in outputs)
        gap = first + self._set_bytes - behind
        while parts > 2 and self._set_bytes // parts < 2 * gap:
            parts //= 2
        part = self._set_bytes // parts
        if part < 2 * gap:
            return None
        for _ in range(TRIES):
            start = first + 8 * secrets.randbelow((part - gap) // 8)
            both = start + self._set_bytes - part, start
            if all(any(low <= place < high for low, high in outputs) for place in both):
                return both
        return None

    def _ends(self) -> tuple[int, int]:
        """A place near the start of an output, and one near the end."""
        return self._place(0, 1 / NEAR), self._place(1 - 1 / NEAR, 1)

    def _place(self, start: float, end: float) -> int:
        """An offset into the first set's outputs, between two shares of one of its tensors."""
        offset, words = secrets.choice(self._outputs)
        first = min(int(words * start), words - 1)
        return offset + 8 * (first + secrets.randbelow(max(1, int(words * end) - first)))


def turned(count: int, first: int) -> list[int]:
    """So many sets in their order, from one of them on, and then from the first."""
    return [*range(first, count), *range(first)]


def overlapped(
    begun: Bools, unfinished: Bools, second: npt.NDArray[np.int64] | None = None
) -> bool:
    """Whether in any look a call's word is unfinished though a later call had begun before.

    Both are bool [rows, calls], rows in the order of time, calls in the order of the round: of
    the word that was read, whether it had changed, and whether it would change again. A row is a
    look, but for those in `second`, which belong to the look of the row before.
    """
    if begun.size == 0:
        return False
    before = np.full(len(begun), -1)
    before[1:] = np.maximum.accumulate(_last_begun(begun))[:-1]
    if second is not None:
        before[second] = before[second - 1]
    return bool((unfinished & (np.arange(begun.shape[1]) < before[:, None])).any())


def _tells(begun: Bools, unfinished: Bools) -> Bools:
    """Of looks, bool [looks, calls], in which of them a call was unfinished though a later one had
    begun."""
    before = np.arange(begun.shape[1]) < _last_begun(begun)[:, None]
    tells: Bools = np.logical_or.reduce(unfinished & before, axis=1)
    return tells


def _apart(spans: list[tuple[int, int]]) -> int:
    """How many spans there are, first and last included, if those that overlap are taken as one."""
    count, end = 0, -1
    for first, last in sorted(spans):
        count += first > end
        end = max(end, last)
    return count


def _last_begun(begun: Bools) -> npt.NDArray[np.int64]:
    """Of each row of bool [rows, calls], the position of the last call that had begun, or -1."""
    found: npt.NDArray[np.int64] = np.amax(
        np.where(begun, np.arange(begun.shape[1]), -1), axis=1, initial=-1
    )
    return found
