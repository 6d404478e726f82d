"""Do the calls of a round run one after the other? Their outputs are sampled while it runs.

A submission that starts a call before the previous one has ended hides the ends of its kernels. So
while a round runs, the copy engine, which the submission cannot hold up, reads a few words of every
set's outputs again and again, at secret places. In a round of calls that run in turn, no call has
begun to write before every earlier one has finished.

A sample reads one word of every set, and then several *boundary pairs*: a word near the end of
every set together with one near the start of the next. Samples are 20 to 40 µs apart and show calls
that run side by side; a pair is read within 0.1 µs and shows calls that overlap for microseconds.
The sets of a round follow each other in the block, so that one copy reads a boundary of all of
them."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from grader.judge.gpu.dma import MOST_PITCH_BYTES, CopyEngine, PairReader
from grader.judge.integrity.policy import CALL_ORDER as POLICY
from grader.judge.memory.shared_block import SharedBlock, blank_word

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.int64]

SINGLES = 3
"""Places read one per sample: near the start of an output, near the end, anywhere."""
NEAR_END = 1
"""Which of them is near the end."""


class CallOrderWatch:
    """Samples the outputs of a block on a CUDA device during one round after another."""

    def __init__(self, block: SharedBlock, copies: CopyEngine, reader: PairReader) -> None:
        """`copies` holds `words_needed(block)` words, `reader` `POLICY.pairs` copies of one pair
        for every set but one."""
        self._block = block
        self.copies = copies
        self._reader = reader
        self._set_bytes = block.tail_bytes // block.count
        # The rest of an output's last word is guard, and stays as it was.
        self._outputs = [(block.head_bytes + at, -(-nbytes // 8)) for at, nbytes in block.written]
        self._rows = copies.words.view(-1, block.count).numpy()
        self._reset([])

    def _reset(self, order: list[int]) -> None:
        """Forget the last round."""
        self._order = np.array(order, dtype=np.int64)
        self._early_samples = 0
        self._early_row: int | None = None  # of the last early sample that counts
        self._turns: list[int] = []  # which single place each sample read
        self._pairs: list[Words] = []  # int64 [pairs, sets - 1, 2] of each sample that has them
        self._watched_us = 0.0
        self._last_ns = 0
        self._final: Words | None = None

    @classmethod
    def over(cls, block: SharedBlock) -> CallOrderWatch | None:
        """None on a CPU, of a single set, and where sets are too large for one copy to reach all of
        them."""
        if block.device != "cuda" or block.count == 1:
            return None
        if not cls.reaches(block.tail_bytes // block.count):
            return None
        copies = CopyEngine(words_needed(block))
        return cls(block, copies, PairReader(copies, POLICY.pairs, block.count - 1))

    @staticmethod
    def reaches(set_bytes: int) -> bool:
        """Whether one copy reaches the same word of every set, of which a call may write
        `set_bytes`."""
        return set_bytes < MOST_PITCH_BYTES

    def arm(self, order: list[int]) -> None:
        """Choose new places for a round in this order."""
        self._reset(order)
        singles, early = self._spread(), self._spread()
        # Boundaries exist only where each call's set lies behind the previous one's.
        in_sequence = len(order) > 1 and order == rotated(self._block.count, order[0])
        found = [self._boundary(parts) for parts in POLICY.boundary_parts] if in_sequence else []
        boundaries = [pair for pair in found if pair is not None]
        chosen = list(itertools.islice(itertools.cycle(boundaries), POLICY.pairs))
        self._has_pairs = bool(boundaries)
        base = self._block.lent.data_ptr()
        if self._has_pairs:
            places = [(base + end, start + self._set_bytes - end) for end, start in chosen]
            self._reader.prepare(places, self._set_bytes)
        self._singles, self._early = singles, early
        self._places = [*singles, *(place for pair in chosen for place in pair)]
        blank = self._untouched([*self._places, *early]).cpu().numpy()
        self._blank, self._early_blank = np.split(blank, [len(self._places)])

    def sample_early(self, is_early: Callable[[], bool]) -> None:
        """Sample before all inputs are there; it counts if `is_early()` still holds afterwards."""
        first = POLICY.most_samples
        row = first if self._early_row != first else first + POLICY.early_words
        self._early_samples += 1
        for i, place in enumerate(self._early):
            self._read(place, row + i)
        self.copies.wait()
        if is_early():
            self._early_row = row

    def begin(self) -> None:
        """The round begins to be sampled."""
        self._last_ns = time.perf_counter_ns()

    def sample(self, with_pairs: bool) -> int:
        """Take one sample, with boundary pairs or only a word near each set's end. The position of
        the last call that had begun; -1 where none had."""
        row = len(self._turns)
        turn = row % SINGLES if with_pairs else NEAR_END
        with_pairs = with_pairs and self._has_pairs
        start_ns = time.perf_counter_ns()
        self._read(self._singles[turn], row)
        if with_pairs:
            self._reader.read()
        self.copies.wait()
        took_us = (time.perf_counter_ns() - start_ns) / 1e3
        self._turns.append(turn)
        begun = self._rows[row] != self._blank[turn]
        if with_pairs:
            if took_us <= POLICY.slow_us:
                self._pairs.append(self._reader.found.copy())
            begun[1:] |= self._reader.found[-1, :, 1] != self._blank[-1, 1:]
        positions = np.flatnonzero(begun[self._order])
        return int(positions[-1]) if len(positions) else -1

    def end_sample(self) -> None:
        """Note how long the sample took, with all that was done beside it."""
        now_ns = time.perf_counter_ns()
        took_us = (now_ns - self._last_ns) / 1e3
        if took_us <= POLICY.slow_us:
            self._watched_us += took_us
        self._last_ns = now_ns

    @property
    def samples(self) -> int:
        """Samples of the round so far."""
        return len(self._turns)

    @property
    def is_full(self) -> bool:
        """Whether no more samples of this round can be kept."""
        return self.samples >= POLICY.most_samples

    def wrote_early(self) -> bool:
        """Whether an output had been written before all inputs were there."""
        if self._early_row is None:
            return False
        seen = self._rows[self._early_row : self._early_row + POLICY.early_words]
        # Until the shadow is published, state is blank too.
        blank = blank_word(self._block.item_bytes)
        return bool(((seen != blank) & (seen != self._early_blank))[:, self._order].any())

    def was_blind(self, round_us: float) -> bool:
        """Whether too much of a round of `round_us` passed without a sample, or all of the time
        before it."""
        if self._early_samples and self._early_row is None:
            return True
        missed_us = round_us - self._watched_us
        return missed_us > POLICY.slow_us + POLICY.blind_share * round_us and not self.is_full

    def ran_concurrently(self) -> bool:
        """Whether one sample showed a later call begun, and a later sample an earlier call
        unfinished. Needs the snapshot of this round, like the following methods."""
        return overlapped(*self._begun_and_unfinished())

    def first_unfinished(self) -> list[int]:
        """For each sample, the position of the first call that had not finished; the number of
        calls where all had."""
        _, unfinished = self._begun_and_unfinished()
        first = np.where(unfinished.any(1), unfinished.argmax(1), len(self._order))
        found: list[int] = first.tolist()
        return found

    def overlaps(self) -> int:
        """Samples with a boundary pair that showed a call unfinished though a later one had
        begun."""
        if not self._pairs:
            return 0
        seen = np.stack(self._pairs)  # [samples, pairs, sets - 1, 2]
        shape = (*seen.shape[:2], self._block.count)
        begun, unfinished = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        begun[..., 1:] = seen[..., 1] != self._blank[SINGLES + 1 :: 2, 1:]
        unfinished[..., :-1] = seen[..., 0] != self._final_words()[SINGLES::2, :-1]
        last = _last_begun(begun[..., self._order])
        before = np.arange(self._block.count) < last[..., None]
        return int((unfinished[..., self._order] & before).any(axis=(1, 2)).sum())

    def _begun_and_unfinished(self) -> tuple[Bools, Bools]:
        """Bool [samples, calls] twice: whether the word has changed, and whether it will change."""
        turns = np.array(self._turns, dtype=np.int64)
        seen = self._rows[: len(turns)]
        begun, unfinished = seen != self._blank[turns], seen != self._final_words()[turns]
        return begun[:, self._order], unfinished[:, self._order]

    def _final_words(self) -> Words:
        """The words at each place of every set once the round is over, int64 [places, sets]."""
        if self._final is None:
            block = self._block
            self._final = self._words(block.snapshot, block.head_bytes, self._places).cpu().numpy()
        return self._final

    def _read(self, place: int, row: int) -> None:
        """Queue a read of one place of every set."""
        block = self._block
        address, at = block.lent.data_ptr() + place, row * block.count
        self.copies.read(address, self._set_bytes, block.count, at)

    def _untouched(self, places: list[int]) -> torch.Tensor:
        """The words at these places of every set before its call, int64 [places, sets]: poison, or
        state."""
        block = self._block
        if block.item_bytes:
            word = blank_word(block.item_bytes)
            return torch.full((len(places), block.count), word, device=block.device)
        return self._words(block.shadow, 0, places)

    def _words(self, buffer: torch.Tensor, start: int, places: list[int]) -> torch.Tensor:
        """Words at these places of every set, in a buffer that begins at offset `start`."""
        firsts = (torch.tensor(places, device=buffer.device) - start) // 8
        steps = torch.arange(self._block.count, device=buffer.device) * (self._set_bytes // 8)
        return buffer.view(torch.int64)[firsts[:, None] + steps]

    def _boundary(self, parts: int) -> tuple[int, int] | None:
        """A place in the last of `parts` parts of a set, and one in the first part, exactly one
        part behind that place of the previous set. None where outputs are too small."""
        outputs = [(at, at + 8 * words) for at, words in self._outputs]
        first, behind = self._block.head_bytes, max(end for _, end in outputs)
        gap = first + self._set_bytes - behind
        while parts > 2 and self._set_bytes // parts < 2 * gap:
            parts //= 2
        part = self._set_bytes // parts
        if part < 2 * gap:
            return None
        for _ in range(POLICY.tries):
            start = first + 8 * secrets.randbelow((part - gap) // 8)
            pair = start + self._set_bytes - part, start
            if all(any(low <= place < high for low, high in outputs) for place in pair):
                return pair
        return None

    def _spread(self) -> list[int]:
        """A place near the start of an output, one near the end, and one anywhere."""
        near = 1 / POLICY.near
        return [self._place(0, near), self._place(1 - near, 1), self._place(0, 1)]

    def _place(self, start: float, end: float) -> int:
        """The offset of a word of the first set, between two shares of one of its outputs."""
        offset, words = secrets.choice(self._outputs)
        first = min(int(words * start), words - 1)
        return offset + 8 * (first + secrets.randbelow(max(1, int(words * end) - first)))


def words_needed(block: SharedBlock) -> int:
    """Words that the samples of a round of this block take."""
    return (POLICY.most_samples + 2 * POLICY.early_words) * block.count


def rotated(count: int, first: int) -> list[int]:
    """0 to `count` - 1 in order, beginning with `first` and going around."""
    return [*range(first, count), *range(first)]


def overlapped(begun: Bools, unfinished: Bools) -> bool:
    """Whether any sample has a call unfinished though an earlier sample had a later call begun.

    Both are bool [samples, calls]: samples in time, calls in the order of the round.
    """
    if begun.size == 0:
        return False
    before = np.full(len(begun), -1)
    before[1:] = np.maximum.accumulate(_last_begun(begun))[:-1]
    return bool((unfinished & (np.arange(begun.shape[1]) < before[:, None])).any())


def _last_begun(begun: Bools) -> npt.NDArray[np.int64]:
    """The position of the last call that had begun, or -1, along the last axis."""
    positions = np.where(begun, np.arange(begun.shape[-1]), -1)
    found: npt.NDArray[np.int64] = positions.max(axis=-1, initial=-1)
    return found
