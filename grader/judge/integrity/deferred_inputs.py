"""Do calls read their inputs when they begin, and no sooner? Some inputs are written just before.

All inputs of a round are in memory when its gate opens, and the order of calls is known. A
submission that controls its process could compute calls side by side, or ahead, and only write
their outputs in turn. So in every round a few secret sets are published with a stale *piece*: some
rows of bytes hold the words of another set of inputs. While the round runs, the copy engine writes
the true ones shortly before their call.

If an earlier call was still unfinished after the write, the inputs arrived in time; outputs that
match the stale inputs then prove precomputation, and no clock is involved. Otherwise the call may
have read a mixture, and the set is undecidable: it counts as wrong only where no mixture explains
its errors.

Assumed: a kernel sees what the copy engine wrote before it began (both go through L2; L1 is empty
when a kernel begins), and only a call writes its set's outputs. Not detected: prefetching into L2,
and a call that re-reads most of its inputs to compare.
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

from grader.arena import TensorSpec
from grader.arena.layout import view
from grader.judge.gpu.dma import CopyEngine
from grader.judge.integrity.policy import DEFERRED as POLICY
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.problem_code import Values


@dataclass
class DeferralCounts:
    """What became of deferred sets."""

    deferred: int = 0
    in_time: int = 0
    """Written before their call can have begun."""
    held_up: int = 0
    """Whose write took long."""

    @property
    def suffice(self) -> bool:
        """Whether enough came in time, and few were held up; or none could be deferred."""
        if self.deferred == 0:
            return True
        enough = self.in_time >= max(1, POLICY.least_in_time * self.deferred)
        few_held_up = self.held_up <= POLICY.most_held_up * self.deferred
        return (enough or self.deferred < POLICY.enough_sets) and few_held_up


@dataclass(frozen=True)
class ByteRows:
    """Evenly spaced rows of bytes."""

    offset: int
    pitch_bytes: int
    width_bytes: int
    rows: int

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        """These rows of a buffer: uint8 [rows, width]."""
        return buffer.as_strided((self.rows, self.width_bytes), (self.pitch_bytes, 1), self.offset)

    @property
    def extent_bytes(self) -> int:
        """From the first byte to behind the last."""
        return (self.rows - 1) * self.pitch_bytes + self.width_bytes


@dataclass(frozen=True, eq=False)
class Deferral:
    """A piece of one set's inputs that is stale until it is written."""

    position: int
    """Of its call in the round."""
    index: int
    """Of its set."""
    piece: ByteRows
    lead_us: float
    """The write begins this long before the expected begin of the call."""
    true: torch.Tensor
    """The piece's true content, uint8 [rows, width], pinned."""
    stale: torch.Tensor
    """Its stale content, alike."""

    @property
    def differs(self) -> bool:
        """Whether stale and true content differ, once both are there."""
        # With numpy: PyTorch would wake a thread on every processor.
        return not np.array_equal(self.true.numpy(), self.stale.numpy())


class DeferredInputs:
    """Withholds inputs of a block's rounds, and writes them while a round runs."""

    def __init__(self, sets: ArgumentSets) -> None:
        self._sets = sets
        self._tensors = deferrable(sets)
        shape = (POLICY.most_sets, POLICY.rows[1] * POLICY.row_bytes[1])
        self._true, self._stale = (
            torch.empty(shape, dtype=torch.uint8, pin_memory=sets.device == "cuda")
            for _ in range(2)
        )
        self._left: deque[Deferral] = deque()
        self._pace = CallPace(0.0)
        self._start_ns = 0
        self._trips_us: deque[float] = deque(maxlen=POLICY.trips)
        self._begun_us: list[float] = []  # begins of the writes before the next sample
        self.written: dict[int, tuple[Deferral, int | None]] = {}
        """By set: what was written in the last round, and the sample behind it; None when the round
        was over."""
        self.counts = DeferralCounts()

    @classmethod
    def over(cls, sets: ArgumentSets) -> DeferredInputs | None:
        """None where no input can be deferred."""
        made = cls(sets) if sets.count > 1 else None
        return made if made is not None and made._tensors[0] else None

    def arm(
        self,
        order: list[int],
        call_us: float,
        rng: random.Random,
        other_inputs: Callable[[int], Values],
    ) -> None:
        """Make pieces of the shadow stale for the next round, whose calls take `call_us`.
        `other_inputs(i)` gives inputs like those of set i that no runner has seen."""
        self._pace = CallPace(call_us)
        self.written = {}
        self._left.clear()
        for row, position in enumerate(draw_positions(len(order), rng)):
            other = other_inputs(order[position])
            for _ in range(POLICY.tries):
                drawn = self._draw(row, position, order[position], other, call_us, rng)
                self._sets.settle()
                if drawn.differs:
                    self._left.append(drawn)
                    drawn.piece.of(self._sets.shadow).copy_(drawn.stale, non_blocking=True)
                    break

    def _draw(
        self,
        row: int,
        position: int,
        index: int,
        other: Values,
        call_us: float,
        rng: random.Random,
    ) -> Deferral:
        """A piece of a set, with true and stale content on their way to pinned memory."""
        tensor = draw_tensor(self._tensors[index], rng)
        piece = draw_piece(tensor.slot.nbytes, rng)
        ahead = rng.uniform(*rng.choice(POLICY.lead_calls))
        lead_us = self._trip_us() + POLICY.seen_us + ahead * call_us
        size = piece.rows * piece.width_bytes
        true, stale = (rows[row, :size].view(piece.rows, -1) for rows in (self._true, self._stale))
        placed = replace(piece, offset=tensor.slot.offset + piece.offset)
        true.copy_(placed.of(self._sets.shadow), non_blocking=True)
        stale.copy_(piece.of(tensor.laid_out(self._sets.shadow, other)), non_blocking=True)
        return Deferral(position, index, placed, lead_us, true, stale)

    def begin(self) -> None:
        """The round begins to be sampled."""
        self._start_ns = time.perf_counter_ns()

    def write_due(self, copies: CopyEngine, sample: int) -> bool:
        """Queue the writes that are due; sample number `sample` follows. Whether there were any."""
        wrote = False
        while self._left:
            due_us = self._pace.begins_us(self._left[0].position) - self._left[0].lead_us
            # The first one may be waited for; what is queued needs its sample at once.
            if due_us - self._passed_us() > (0.0 if wrote else POLICY.sample_us):
                break
            while self._passed_us() < due_us:
                pass
            wrote = True
            self._begun_us.append(self._passed_us())
            self._write(copies, self._left.popleft(), sample)
        return wrote

    def write_rest(self, copies: CopyEngine, is_over: bool) -> None:
        """Write what is left, so that the inputs are true when they are compared. Deferrals of a
        round that was not sampled to its end do not count."""
        if not is_over:
            self.counts.deferred -= len(self._left)
        while self._left:
            self._write(copies, self._left.popleft(), None)
        copies.wait()

    def _write(self, copies: CopyEngine, deferral: Deferral, sample: int | None) -> None:
        address = self._sets.lent.data_ptr() + deferral.piece.offset
        copies.write(deferral.true, address, deferral.piece.pitch_bytes)
        self.written[deferral.index] = deferral, sample
        self.counts.deferred += 1

    def saw(self, furthest: int, is_closing: bool) -> None:
        """The last sample saw the call at position `furthest` begun and none behind it;
        `is_closing` when it followed a probe, whose time is not a write's."""
        now_us = self._passed_us()
        self._pace.saw(furthest, now_us)
        if self._begun_us and not is_closing:
            trip_us = now_us - self._begun_us[-1]
            if trip_us > POLICY.held_up_us:
                self.counts.held_up += len(self._begun_us)
            self._trips_us.append(min(trip_us, POLICY.held_up_us))
        self._begun_us.clear()

    def restore(self) -> None:
        """Make the shadow true again."""
        for deferral, _ in self.written.values():
            deferral.piece.of(self._sets.shadow).copy_(deferral.true, non_blocking=True)

    @contextlib.contextmanager
    def stale(self, index: int) -> Iterator[None]:
        """The shadow with a set's stale inputs."""
        deferral, _ = self.written[index]
        deferral.piece.of(self._sets.shadow).copy_(deferral.stale)
        try:
            yield
        finally:
            deferral.piece.of(self._sets.shadow).copy_(deferral.true)

    def in_time(self, first_unfinished: list[int]) -> set[int]:
        """The sets that were written before their call can have begun. `first_unfinished` gives for
        each sample the position of the first call that was unfinished."""
        found = {
            index
            for index, (deferral, sample) in self.written.items()
            if sample is not None and first_unfinished[sample] < deferral.position
        }
        self.counts.in_time += len(found)
        return found

    def _trip_us(self) -> float:
        known = sorted(self._trips_us)
        return known[len(known) // 4] if known else POLICY.trip_us

    def _passed_us(self) -> float:
        return (time.perf_counter_ns() - self._start_ns) / 1e3


class CallPace:
    """When calls begin, by the judge's clock, estimated from samples."""

    def __init__(self, call_us: float) -> None:
        self._call_us = call_us
        self._furthest = -1
        # Begins of the first call, as each recent call implies it; at first, when the gate opened.
        self._begins: deque[float] = deque([0.0], POLICY.recent_calls)

    def saw(self, furthest: int, at_us: float) -> None:
        """At `at_us`, the call at position `furthest` had begun and none behind it."""
        if furthest <= self._furthest:
            return
        if self._furthest < 0:
            self._begins.clear()
        self._furthest = furthest
        self._begins.append(at_us - furthest * self._call_us)

    def begins_us(self, position: int) -> float:
        """When the call at this position begins: by the earliest of the recent calls, since a begin
        may be seen late and never early."""
        return min(self._begins) + position * self._call_us


@dataclass(frozen=True)
class InputTensor:
    """Where an input tensor of a set lies in the block."""

    slot: TensorSpec
    argument: str
    number: int | None = None
    """Its place in a list of tensors."""

    def laid_out(self, shadow: torch.Tensor, values: Values) -> torch.Tensor:
        """The tensor of other inputs as it would lie there, uint8 [nbytes]; between its elements
        lie the shadow's bytes."""
        made = shadow[self.slot.offset : self.slot.offset + self.slot.nbytes].clone()
        value = values[self.argument]
        there = view(made, replace(self.slot, offset=0))
        there.copy_(value if self.number is None else value[self.number])
        return made


def deferrable(sets: ArgumentSets) -> list[list[list[InputTensor]]]:
    """The inputs of each set that may be deferred: for each argument that has any, its tensors.
    Empty where an output has several right values, since no mixture explains them."""
    if not all(argument.unique for argument in sets.problem.spec.args):
        return [[] for _ in sets.layout.sets]
    found = []
    for values in sets.layout.sets:
        arguments = []
        for argument, value in zip(sets.problem.spec.args, values, strict=True):
            if argument.is_written or argument.structured or argument.weight:
                continue
            if isinstance(value, list):
                tensors = [InputTensor(slot, argument.name, i) for i, slot in enumerate(value)]
            else:
                tensors = (
                    [InputTensor(value, argument.name)] if isinstance(value, TensorSpec) else []
                )
            large = [
                tensor
                for tensor in tensors
                if tensor.slot.dtype in POLICY.dtypes and tensor.slot.nbytes >= POLICY.least_bytes
            ]
            if large:
                arguments.append(large)
        found.append(arguments)
    return found


def draw_positions(calls: int, rng: random.Random) -> list[int]:
    """Positions of the deferred sets, ascending; never the first call."""
    count = min(max(1, calls // POLICY.calls_per_set), POLICY.most_sets, calls - 1)
    return sorted(rng.sample(range(1, calls), count))


def draw_tensor(arguments: list[list[InputTensor]], rng: random.Random) -> InputTensor:
    """A tensor: half of the time of the smallest argument, on which most outputs depend more."""
    sizes = [sum(tensor.slot.nbytes for tensor in tensors) for tensors in arguments]
    smallest = rng.random() < 0.5
    tensors = arguments[sizes.index(min(sizes)) if smallest else rng.randrange(len(sizes))]
    (tensor,) = rng.choices(tensors, [tensor.slot.nbytes for tensor in tensors])
    return tensor


def draw_piece(nbytes: int, rng: random.Random) -> ByteRows:
    """A piece of a tensor of `nbytes`, at least `POLICY.least_bytes`."""
    narrowest, align = POLICY.row_bytes[0], POLICY.align_bytes
    rows = rng.randint(*POLICY.rows)
    widest = min(POLICY.row_bytes[1], nbytes // (2 * rows))
    width = int(narrowest * (widest / narrowest) ** rng.random()) // align * align
    least, most = 2 * width // align, (nbytes - width) // (rows - 1) // align
    pitch = align * rng.randint(least, most)
    room = nbytes - (rows - 1) * pitch - width
    return ByteRows(align * rng.randrange(room // align + 1), pitch, width, rows)
