"""Do calls read their inputs when they begin, and no sooner? Some inputs come late.

All inputs of a round are there when its gate opens, and their order is known. So whoever has made
the process his own could compute calls side by side, or ahead, and only write their outputs in
turn: that is all that the lookout sees. Therefore in every round some sets, which nobody knows, are
published with a piece of an input that is stale: a few rows of bytes have the words of another set,
drawn for this alone, so that nobody who reads all that is lent can tell which they are. While the
round goes on, the copy engine writes the true ones, shortly before the call that they belong to.
Was a call before that one still unfinished after the write, an honest call began with true inputs;
outputs that are right for the stale ones were computed too soon, and no clock was asked. Where no
look tells that, a call may have met some of each, and only that is held against it which no such
piece explains (`grader.judge.correctness.check.unexplained`), as a rule.

What is assumed: a kernel sees what the copy engine wrote before it began, since both go through the
L2 cache, and the L1 caches are emptied when a kernel begins. Nobody but a call writes its set's
outputs. What is not seen: reading ahead into the L2 cache, where the true words arrive too; and
whoever reads most inputs again when the call begins, to compare.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from grader.arena import Slot
from grader.arena.layout import view
from grader.judge.gpu.dma import Peek
from grader.judge.memory.argument_sets import Loan
from grader.judge.problem_code import Values

MIXED = ("fp64", "fp32", "fp16", "bf16", "int8", "uint8")
"""Element types of which a mixture of two tensors' words is as good as either, unless a problem
says that one is structured. Wider integers may be offsets, which belong together: a call that met
some of each could go anywhere."""
MOST_LATE, CALLS_A_LATE = 4, 10
"""So many sets of a round come late at most, and one of so many; one at least. Few, since every
round that is timed has them. They move no time that can be told (`benchmarks/late_inputs.py`)."""
LEAST_BYTES, ALIGN_BYTES = 4096, 16
"""Of a tensor that may come late, and of the pitch, width and place of a piece's rows."""
ROWS, LEAST_WIDTH_BYTES, MOST_WIDTH_BYTES = (8, 32), 64, 2048
"""Of pieces. With something between the rows: what is all of one piece and small, the driver does
not give to the copy engine, and it would wait for its turn on the GPU, 2.3 ms
(`benchmarks/copies.py`). Not alike: whoever reads a few words again shall not find them all."""
TRIES = 16
"""So many pieces are drawn for a set until one differs from what is to stand for it; where none
does, it does not come late."""
TRIP_US, SEEN_US = 35.0, 20.0
"""From when a write is begun until the look behind it has been taken, where that is not known yet:
on some hosts it takes 20, on others 60; and how much later than it begins a call is seen to."""
TRIPS = 16
"""So many are remembered. A quarter of them took less than what is reckoned with: who has the copy
engine take longer now and then, does not have writes come sooner by it."""
AHEAD = ((0.0, 0.5), (0.1, 2.5))
"""By so many calls, drawn evenly from one of these, a write's look is to be over before its call is
seen to begin: late enough to tell who reads a little too soon, and early enough for a kernel that
writes its outputs at the end, which is seen to begin when it ends."""
LOOK_US = 22.0
"""What a look takes while there are glances: whatever is due sooner is waited for."""
SLOW_US = 100.0
"""A write, with the look behind it, that takes so long was held up."""
RECENT = 4
"""A round's pace is reckoned from so many calls that were seen to have begun."""
LEAST_IN_TIME, MOST_HELD_UP = 1 / 32, 1 / 3
"""Of all that came late this share must have been in time, one at least, and no more may have been
held up: else somebody keeps the copy engine busy."""
ENOUGH = 12
"""Where fewer came late, the first of these rules asks too much: by chance none of six may be in
time. Their calls are long, and whoever delays a write by as much holds it up."""


@dataclass
class Tally:
    """What came of inputs that came late, in sets."""

    late: int = 0
    in_time: int = 0
    """Before their call may have begun."""
    held_up: int = 0
    """Whose write took long."""
    wrong: int = 0
    """Not known to be in time, and wrong by a quick look: by that alone nobody is judged."""
    unwatched: int = 0
    """Not counted in any of these: their calls came after the last look, in rounds too long to be
    watched to their end."""

    @property
    def tells(self) -> bool:
        """Whether enough came in time, and as a rule without delay; or nothing could come late."""
        if self.late == 0:
            return True
        is_enough = self.in_time >= max(1, LEAST_IN_TIME * self.late)
        return (is_enough or self.late < ENOUGH) and self.held_up <= MOST_HELD_UP * self.late


@dataclass(frozen=True)
class Piece:
    """Rows of bytes of a block, evenly apart."""

    offset: int
    pitch_bytes: int
    width_bytes: int
    rows: int

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        """It as it lies in a buffer that begins like the block: uint8 [rows, width]."""
        return buffer.as_strided((self.rows, self.width_bytes), (self.pitch_bytes, 1), self.offset)

    def at(self, offset: int) -> Piece:
        """Rows alike that begin at another offset."""
        return replace(self, offset=offset)

    @property
    def extent_bytes(self) -> int:
        """From its first byte to behind its last."""
        return (self.rows - 1) * self.pitch_bytes + self.width_bytes


@dataclass(frozen=True, eq=False)
class Late:
    """A piece of a set's inputs that is withheld in one round."""

    position: int
    """Of its set in the round's order."""
    index: int
    """Of its set."""
    piece: Piece
    lead_us: float
    """So long before its call is expected to begin, the write is."""
    true: torch.Tensor
    """What the piece should hold, uint8 [rows, width], in memory that the copy engine reads."""
    stale: torch.Tensor
    """What it holds until then, in memory alike."""

    @property
    def differs(self) -> bool:
        """Whether these are different, once both are there."""
        # Not by PyTorch, which would wake a thread on every processor for it.
        return not np.array_equal(self.true.numpy(), self.stale.numpy())


class LateInputs:
    """Withholds inputs of a loan's rounds, and has them written while a round goes on."""

    def __init__(self, loan: Loan) -> None:
        self._loan = loan
        self._places = places(loan)
        shape = (MOST_LATE, ROWS[1] * MOST_WIDTH_BYTES)
        self._true, self._stale = (
            torch.empty(shape, dtype=torch.uint8, pin_memory=loan.device == "cuda")
            for _ in range(2)
        )
        self._left: deque[Late] = deque()
        self._pace = Pace(0.0)
        self._start_ns = 0
        self.written: dict[int, tuple[Late, int | None]] = {}
        """By set: what came late in the last round, and the look behind it; None when the round was
        over."""
        self._trips_us: deque[float] = deque(maxlen=TRIPS)
        self._begun_us: list[float] = []
        """When the writes before the next look were begun."""
        self.tally = Tally()

    @classmethod
    def over(cls, loan: Loan) -> LateInputs | None:
        """None where no input can come late."""
        late = cls(loan) if loan.count > 1 else None
        return late if late is not None and late._places[0] else None

    def withhold(
        self,
        order: list[int],
        call_us: float,
        rng: random.Random,
        another: Callable[[int], Values],
    ) -> None:
        """Make pieces of the image stale, for the next round, which is in this order and whose
        calls take so long. `another` gives inputs like those of a set, that nobody was lent."""
        self._pace = Pace(call_us)
        self.written = {}
        self._left.clear()
        for row, at in enumerate(positions(len(order), rng)):
            other = another(order[at])
            for _ in range(TRIES):
                late = self._draw(row, at, order[at], other, call_us, rng)
                self._loan.settle()
                if late.differs:
                    self._left.append(late)
                    late.piece.of(self._loan.image).copy_(late.stale, non_blocking=True)
                    break

    def _draw(
        self,
        row: int,
        position: int,
        index: int,
        other: Values,
        call_us: float,
        rng: random.Random,
    ) -> Late:
        """A piece of a set, and what is to stand for it: what lies there of the other inputs. On
        their way to rows of ours."""
        place = choose(self._places[index], rng)
        piece = piece_of(place.slot.nbytes, rng)
        lead_us = self._trip_us() + SEEN_US + rng.uniform(*rng.choice(AHEAD)) * call_us
        size = piece.rows * piece.width_bytes
        true, stale = (rows[row, :size].view(piece.rows, -1) for rows in (self._true, self._stale))
        there = piece.at(place.slot.offset + piece.offset)
        true.copy_(there.of(self._loan.image), non_blocking=True)
        stale.copy_(piece.of(place.laid_out(self._loan.image, other)), non_blocking=True)
        return Late(position, index, there, lead_us, true, stale)

    def begin(self) -> None:
        """The round begins to be watched."""
        self._start_ns = time.perf_counter_ns()

    def write_due(self, peek: Peek, look: int) -> bool:
        """Begin to write what is due; look number `look` comes behind it. Whether anything was."""
        may_wait = True
        while self._left:
            due_us = self._pace.begins_us(self._left[0].position) - self._left[0].lead_us
            if due_us - self._passed_us() > (LOOK_US if may_wait else 0.0):
                break
            while self._passed_us() < due_us:
                pass
            may_wait = False  # what was begun is to be looked behind at once
            self._begun_us.append(self._passed_us())
            self._write(peek, self._left.popleft(), look)
        return not may_wait

    def write_rest(self, peek: Peek, is_over: bool) -> None:
        """Write what is left when the round is over, or no longer watched: whoever compares inputs
        then must find them as they should be."""
        if not is_over:
            self.tally.unwatched += len(self._left)
            self.tally.late -= len(self._left)
        while self._left:
            self._write(peek, self._left.popleft(), None)
        peek.wait()

    def _write(self, peek: Peek, late: Late, look: int | None) -> None:
        address = self._loan.lent.data_ptr() + late.piece.offset
        peek.write(late.true, address, late.piece.pitch_bytes)
        self.written[late.index] = late, look
        self.tally.late += 1

    def saw(self, furthest: int, is_closing: bool) -> None:
        """That in the last look the call at this position had begun, and none behind it; and
        whether it came behind a probe, as looks do near the end of a round."""
        now_us = self._passed_us()
        self._pace.saw(furthest, now_us)
        if self._begun_us and not is_closing:
            trip_us = now_us - self._begun_us[-1]
            if trip_us > SLOW_US:
                self.tally.held_up += len(self._begun_us)
            self._trips_us.append(min(trip_us, SLOW_US))
        self._begun_us.clear()

    def put_back(self) -> None:
        """Make the image true again."""
        for late, _ in self.written.values():
            late.piece.of(self._loan.image).copy_(late.true, non_blocking=True)

    @contextlib.contextmanager
    def stale(self, index: int) -> Iterator[None]:
        """The image with what a set's inputs had until they were written."""
        late, _ = self.written[index]
        late.piece.of(self._loan.image).copy_(late.stale)
        try:
            yield
        finally:
            late.piece.of(self._loan.image).copy_(late.true)

    def were_in_time(self, first_unfinished: list[int]) -> set[int]:
        """The sets whose call cannot have begun before the write was over; the argument gives for
        each look of the round the position of the first call that was not finished then."""
        found = {
            index
            for index, (late, look) in self.written.items()
            if look is not None and first_unfinished[look] < late.position
        }
        self.tally.in_time += len(found)
        return found

    def _trip_us(self) -> float:
        known = sorted(self._trips_us)
        return known[len(known) // 4] if known else TRIP_US

    def _passed_us(self) -> float:
        return (time.perf_counter_ns() - self._start_ns) / 1e3


class Pace:
    """When calls begin, by the judge's clock, as far as seeing their outputs appear tells."""

    def __init__(self, call_us: float) -> None:
        self._call_us = call_us
        self._furthest = -1
        self._begins: deque[float] = deque([0.0], RECENT)
        """When the first call began, by the calls that were seen to begin; until one was, when the
        gate opened: sooner it cannot be."""

    def saw(self, furthest: int, at_us: float) -> None:
        """That the call at this position had begun, and none behind it."""
        if furthest <= self._furthest:
            return
        if self._furthest < 0:
            self._begins.clear()
        self._furthest = furthest
        self._begins.append(at_us - furthest * self._call_us)

    def begins_us(self, position: int) -> float:
        """When the call at this position begins. Seeing it may take long, and is never early: the
        earliest of the recent begins counts, not of all, since calls may take longer than told."""
        return min(self._begins) + position * self._call_us


@dataclass(frozen=True)
class Place:
    """Where a tensor of a set lies in a block."""

    slot: Slot
    name: str
    """Of its argument."""
    number: int | None = None
    """Which of a list of tensors it is."""

    def laid_out(self, image: torch.Tensor, values: Values) -> torch.Tensor:
        """The tensor of other inputs as it would lie there, uint8 [its bytes]; what lies between
        its elements is the image's."""
        start = self.slot.offset
        made = image[start : start + self.slot.nbytes].clone()
        value = values[self.name]
        there = view(made, replace(self.slot, offset=0))
        there.copy_(value if self.number is None else value[self.number])
        return made


def places(loan: Loan) -> list[list[list[Place]]]:
    """Where the inputs of each set lie that may come late: per argument that has some, its tensors;
    none of them too small."""
    found = []
    for values in loan.layout.sets:
        arguments = []
        for argument, value in zip(loan.problem.spec.args, values, strict=True):
            if argument.role != "in" or argument.structured:
                continue
            if isinstance(value, list):
                tensors = [Place(slot, argument.name, i) for i, slot in enumerate(value)]
            else:
                tensors = [Place(value, argument.name)] if isinstance(value, Slot) else []
            large = [
                place
                for place in tensors
                if place.slot.dtype in MIXED and place.slot.nbytes >= LEAST_BYTES
            ]
            if large:
                arguments.append(large)
        found.append(arguments)
    return found


def positions(calls: int, rng: random.Random) -> list[int]:
    """Positions of late sets, ascending; never the first, which there is no time before."""
    count = min(max(1, calls // CALLS_A_LATE), MOST_LATE, calls - 1)
    return sorted(rng.sample(range(1, calls), count))


def choose(arguments: list[list[Place]], rng: random.Random) -> Place:
    """A tensor of an argument: half of the time of the smallest argument, which most outputs depend
    on more, else of any."""
    sizes = [sum(place.slot.nbytes for place in tensors) for tensors in arguments]
    is_small = rng.random() < 0.5
    tensors = arguments[sizes.index(min(sizes)) if is_small else rng.randrange(len(sizes))]
    (place,) = rng.choices(tensors, [place.slot.nbytes for place in tensors])
    return place


def piece_of(nbytes: int, rng: random.Random) -> Piece:
    """A piece of so many bytes, `LEAST_BYTES` at least."""
    rows = rng.randint(*ROWS)
    widest = min(MOST_WIDTH_BYTES, nbytes // (2 * rows))
    width = _aligned(LEAST_WIDTH_BYTES * (widest / LEAST_WIDTH_BYTES) ** rng.random())
    least, most = 2 * width // ALIGN_BYTES, (nbytes - width) // (rows - 1) // ALIGN_BYTES
    pitch = ALIGN_BYTES * rng.randint(least, most)
    room = nbytes - (rows - 1) * pitch - width
    return Piece(ALIGN_BYTES * rng.randrange(room // ALIGN_BYTES + 1), pitch, width, rows)


def _aligned(nbytes: float) -> int:
    return int(nbytes) // ALIGN_BYTES * ALIGN_BYTES
