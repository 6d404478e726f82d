"""Inputs that come late: who reads them too soon is found, and nobody else, in host memory and
made-up time."""

from __future__ import annotations

import contextlib
import ctypes
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.verdict_latency import ROOT
from grader.arena import TensorSpec, arrange
from grader.arena.layout import view
from grader.judge.benchmark import UNEXPLAINED, Bench
from grader.judge.correctness.check import errors_beyond_mixed_inputs
from grader.judge.grading import Grading
from grader.judge.integrity.call_order import turned
from grader.judge.integrity.deferred_inputs import (
    ALIGN_BYTES,
    LEAST_BYTES,
    MIXED,
    MOST_HELD_UP,
    MOST_LATE,
    ROWS,
    TRIP_US,
    TRIPS,
    LateInputs,
    Pace,
    Place,
    Tally,
    choose,
    piece_of,
    places,
    positions,
)
from grader.judge.memory.argument_sets import Loan
from grader.judge.memory.shared_block import Block, poison
from grader.judge.record import Record
from grader.judge.session import Session, greet
from grader.judge.verdict import SubmissionFault
from grader.problem import Problem
from grader.problem.spec import Argument, Case, Role, Tolerance
from grader.report import Verdict
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits
from grader.submission import Submission
from tests.judge.host_pairs import MemoryLookout
from tests.waiting import PATIENCE_S

COUNT = 64
ORDER = list(range(COUNT))
LATE = MOST_LATE
ELEMENTS = 1024
BEGIN_US = 100.0
"""From when the gate opens until the first call begins."""
ROUNDS = 36
STEP_BYTES = 8 * ELEMENTS + 512
"""From a set's input to the next one's."""
PARTS = 4
"""Pieces in which a call writes its outputs."""
ARGS = [
    Argument(name="x", role="in", dtype="fp32"),
    Argument(name="out", role="out", dtype="fp32"),
]


class Runner:
    """Calls a round's sets one after the other, in made-up time. Each reads its inputs when it
    begins, or so many calls too soon, and writes three times them and one: piece by piece, or all
    at its end."""

    def __init__(
        self,
        block: Block,
        call_us: float,
        too_soon: float = 0.0,
        at_end: bool = False,
        first: int = 0,
        engine: float = 1.0,
    ) -> None:
        self.order = turned(COUNT, first)
        self.engine = engine
        """How much more time the copy engine takes than on a fast host."""
        self._block = block
        self.now_us = 0.0
        self._todo: list[tuple[float, Callable[[], None]]] = []
        self._read: dict[int, torch.Tensor] = {}
        for position, index in enumerate(self.order):
            begin_us = BEGIN_US + position * call_us
            self._at(max(0.0, begin_us - too_soon * call_us), self._reader(index))
            for part in range(PARTS):
                share = 1.0 if at_end else (part + 1) / PARTS
                self._at(begin_us + share * call_us, self._writer(index, part))
        # Of two things at the same time, what was asked for first comes first: a call's last piece
        # before the next call's inputs.
        self._todo.sort(key=lambda one: one[0])

    def pass_us(self, us: float) -> None:
        """Let so much time pass."""
        self.now_us += us
        while self._todo and self._todo[0][0] <= self.now_us:
            self._todo.pop(0)[1]()

    def goes_on(self) -> bool:
        return bool(self._todo)

    def _at(self, us: float, what: Callable[[], None]) -> None:
        self._todo.append((us, what))

    def _reader(self, index: int) -> Callable[[], None]:
        def read() -> None:
            self._read[index] = input_of(self._block, self._block.lent, index) * 3 + 1

        return read

    def _writer(self, index: int, part: int) -> Callable[[], None]:
        piece = slice(part * ELEMENTS // PARTS, (part + 1) * ELEMENTS // PARTS)

        def write() -> None:
            tail = self._block.lent[self._block.head_bytes :].view(torch.int64).view(COUNT, -1)
            tail[index, piece] = self._read[index][piece]

        return write


WAIT_US = 1.0


class HostPeek:
    """Writes host memory, and takes its time."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def write(self, rows: torch.Tensor, address: int, pitch_bytes: int) -> None:
        self._runner.pass_us(4 * self._runner.engine)
        for i, row in enumerate(rows):
            ctypes.memmove(address + i * pitch_bytes, row.data_ptr(), row.numel())
        self._runner.pass_us(self._runner.engine)

    def wait(self) -> None:
        self._runner.pass_us(WAIT_US)


class HostLookout(MemoryLookout):
    """Takes its time for it."""

    def __init__(self, block: Block, runner: Runner) -> None:
        super().__init__(block)
        self._runner = runner
        self._peek = HostPeek(runner)
        self._glances.allowed = 1 << 30

    def _read(self, places: list[int], row: int) -> None:
        self._runner.pass_us(8 * self._runner.engine)
        super()._read(places, row)
        self._runner.pass_us(7 * self._runner.engine - WAIT_US)

    def _read_seam(self, turn: int, row: int) -> float:
        self._runner.pass_us(8 * self._runner.engine)
        took_us = super()._read_seam(turn, row)
        self._runner.pass_us(7 * self._runner.engine - WAIT_US)
        return took_us


class HostLate(LateInputs):
    def __init__(self, block: Any, runner: Runner) -> None:
        super().__init__(block)
        self._runner = runner

    def _passed_us(self) -> float:
        self._runner.pass_us(0.5)
        return self._runner.now_us


def another(index: int) -> dict[str, Any]:
    """Inputs that nobody was lent."""
    return {"x": torch.randn(ELEMENTS, dtype=torch.float64)}


def poisoned(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    poison(out)
    return out


def input_of(block: Block, buffer: torch.Tensor, index: int) -> torch.Tensor:
    """The input of a set, int64, as it lies in a buffer."""
    slot: Any = block.layout.sets[index][0]
    return buffer[slot.offset : slot.offset + slot.nbytes].view(torch.int64)


def inputs(block: Block, buffer: torch.Tensor) -> list[torch.Tensor]:
    return [input_of(block, buffer, index) for index in range(block.count)]


def new_block(item_bytes: int) -> Any:
    words = TensorSpec(0, "fp64", (ELEMENTS,), (1,))
    made: Any = Block(arrange([[(False, words), (True, words)]] * COUNT), item_bytes, "cpu")
    made.keep_probing = made.probe
    made.written = [(0, 8 * ELEMENTS)]
    made.problem = SimpleNamespace(spec=SimpleNamespace(args=ARGS))
    return made


@pytest.fixture(params=[8, 0], ids=["outputs", "state"])
def block(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = new_block(request.param)
    yield made
    made.close()


class Round:
    """A round of which the judge believes that calls take so long; and that a write and the look
    behind it do, who keeps `trips_us` from round to round."""

    def __init__(
        self,
        block: Any,
        runner: Runner,
        call_us: float,
        seed: int = 1,
        trips_us: deque[float] | None = None,
    ) -> None:
        block.image.random_()
        lookout, self.late = HostLookout(block, runner), HostLate(block, runner)
        if trips_us is not None:
            self.late._trips_us = trips_us
        self.late.withhold(runner.order, call_us, random.Random(seed), another)
        block.ready(runner.order)
        lookout.aim(runner.order)
        block.publish(runner.order)
        lookout.watch(runner.goes_on, self.late)
        runner.pass_us(1e9)  # what is not watched goes on
        block.probe()
        block.collect()
        self.late.put_back()
        self.in_time = self.late.were_in_time(lookout.first_unfinished())
        self.wrong = wrong(block)
        self.is_side_by_side = lookout.side_by_side() or lookout.meetings() > 0


def first_of(seed: int) -> int:
    """With which set a round begins: every other one as if it was captured."""
    return random.Random(seed).randrange(COUNT) if seed % 2 else 0


def wrong(block: Any) -> set[int]:
    """The sets whose outputs are wrong for what the image has."""
    outputs = block.snapshot.view(torch.int64).view(COUNT, -1)[:, :ELEMENTS]
    wanted = [values * 3 + 1 for values in inputs(block, block.image)]
    return {i for i in range(COUNT) if not torch.equal(outputs[i], wanted[i])}


@pytest.mark.parametrize("at_end", [False, True], ids=["piece by piece", "at the end"])
@pytest.mark.parametrize("call_us", [12.0, 40.0, 200.0])
def test_an_honest_round_has_none_wrong_of_those_in_time(
    block: Any, call_us: float, at_end: bool
) -> None:
    in_time = 0
    for seed in range(ROUNDS):
        runner = Runner(block, call_us, at_end=at_end, first=first_of(seed))
        found = Round(block, runner, call_us, seed)
        assert len(found.late.written) == LATE
        assert not found.wrong & found.in_time
        assert not found.is_side_by_side
        in_time += len(found.in_time)
    assert in_time >= ROUNDS * LATE / 10


@pytest.mark.parametrize("at_end", [False, True], ids=["piece by piece", "at the end"])
@pytest.mark.parametrize(("call_us", "too_soon"), [(12.0, 7), (40.0, 4), (200.0, 2), (200.0, 1)])
def test_inputs_that_were_read_too_soon_are_found(
    block: Any, call_us: float, too_soon: float, at_end: bool
) -> None:
    """Outputs come in turn all the same; and they are right for what was there before."""
    caught = 0
    for seed in range(ROUNDS):
        runner = Runner(block, call_us, too_soon, at_end, first_of(seed))
        found = Round(block, runner, call_us, seed)
        assert not found.is_side_by_side
        caught += len(found.wrong & found.in_time)
        for i in found.wrong:
            with found.late.stale(i):
                assert wrong(block) == found.wrong - {i}
        assert wrong(block) == found.wrong
    assert caught >= (ROUNDS * LATE / 10 if too_soon > 1 else 1)


@pytest.mark.parametrize("at_end", [False, True], ids=["piece by piece", "at the end"])
@pytest.mark.parametrize("call_us", [12.0, 40.0])
def test_a_slow_copy_engine_is_reckoned_with(call_us: float, at_end: bool) -> None:
    """As on hosts where a write takes 14 µs, and a look 40."""
    block, caught = new_block(8), 0
    in_time: dict[bool, int] = {True: 0, False: 0}
    known: deque[float] = deque(maxlen=TRIPS)
    for seed in range(ROUNDS):
        for is_known in in_time:
            runner = Runner(block, call_us, 0.0, at_end, first_of(seed), engine=2.7)
            trips_us = known if is_known else deque[float]()
            found = Round(block, runner, call_us, seed, trips_us)
            assert not found.wrong & found.in_time
            in_time[is_known] += len(found.in_time)
        runner = Runner(block, call_us, 7.0, at_end, first_of(seed), engine=2.7)
        found = Round(block, runner, call_us, seed, known)
        caught += len(found.wrong & found.in_time)
    block.close()
    assert in_time[True] > ROUNDS * LATE / 4
    assert in_time[True] > 1.5 * in_time[False]
    assert caught > ROUNDS * LATE / 5


def test_who_slows_the_copy_engine_now_and_then_does_not_have_writes_come_sooner(
    block: Any,
) -> None:
    late = LateInputs(block)
    assert late._trip_us() == TRIP_US
    late._trips_us.extend([30.0] * TRIPS)
    late._trips_us.extend([90.0] * (TRIPS * 3 // 4 - 1))
    assert late._trip_us() == 30
    late._trips_us.extend([90.0] * TRIPS)
    assert late._trip_us() == 90, "as it is on this host"


def test_after_a_round_all_inputs_are_true(block: Any) -> None:
    for believed_us in (10, 100, 1000):
        found = Round(block, Runner(block, 100), believed_us)
        assert len(found.late.written) == LATE
        head = slice(0, block.head_bytes)
        assert torch.equal(block.lent[head], block.image[head])


def test_whether_anything_was_written_is_told(block: Any, monkeypatch: Any) -> None:
    write_due, told = LateInputs.write_due, []

    def noted(late: LateInputs, peek: Any, look: int) -> bool:
        before = len(late.written)
        says = write_due(late, peek, look)
        told.append((says, len(late.written) > before))
        return says

    monkeypatch.setattr(LateInputs, "write_due", noted)
    Round(block, Runner(block, 100), 100)
    assert set(told) == {(True, True), (False, False)}


def test_writes_that_come_too_late_tell_nothing(block: Any, monkeypatch: Any) -> None:
    """Nothing was withheld for longer than the round, and an honest call may be wrong then."""
    monkeypatch.setattr("grader.judge.integrity.deferred_inputs.TRIP_US", -400.0)
    found = Round(block, Runner(block, 100), 100)
    assert not found.in_time
    assert found.wrong == set(found.late.written)


@settings(max_examples=40)
@given(
    call_us=st.floats(6, 300),
    believed=st.floats(0.3, 3),
    at_end=st.booleans(),
    seed=st.integers(0, 1000),
    item_bytes=st.sampled_from([8, 0]),
)
def test_an_honest_round_is_never_blamed(
    call_us: float, believed: float, at_end: bool, seed: int, item_bytes: int
) -> None:
    block = new_block(item_bytes)
    runner = Runner(block, call_us, at_end=at_end)
    found = Round(block, runner, call_us * believed, seed)
    assert not found.in_time & found.wrong
    assert found.wrong <= set(found.late.written)
    block.close()


def test_calls_after_the_last_look_tell_nothing(block: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("grader.judge.integrity.call_order.MOST_READS", 100)
    found = Round(block, Runner(block, 200), 200)
    seen = {i for i, (_, look) in found.late.written.items() if look is not None}
    assert found.late.tally.unwatched == LATE - len(seen) > 0
    assert found.late.tally.late == len(seen)
    assert found.in_time <= seen
    assert found.wrong <= set(found.late.written)


def test_sets_that_are_all_alike_withhold_nothing(block: Any) -> None:
    late = LateInputs(block)
    block.image.zero_()
    zeros = {"x": torch.zeros(ELEMENTS, dtype=torch.float64)}
    late.withhold(ORDER, 10.0, random.Random(1), lambda _: zeros)
    late.begin()
    late.write_rest(HostPeek(Runner(block, 10)), is_over=True)  # type: ignore[arg-type]
    assert late.written == {}
    assert late.tally.tells


def test_stale_words_are_in_nothing_that_was_lent() -> None:
    block = new_block(8)
    block.image.random_()
    before = block.image.clone()
    lent = {word for x in inputs(block, before) for word in x.tolist()}
    late = LateInputs(block)
    given: dict[int, torch.Tensor] = {}

    def kept(index: int) -> dict[str, Any]:
        made = another(index)
        given[index] = made["x"].view(torch.int64)
        return made

    for seed in range(20):
        block.image.copy_(before)
        late.withhold(ORDER, 10.0, random.Random(seed), kept)
        assert len(late._left) == LATE
        for one in late._left:
            assert torch.equal(one.true, one.piece.of(before))
            assert torch.equal(one.stale, one.piece.of(block.image))
            assert lent.isdisjoint(one.stale.reshape(-1).view(torch.int64).tolist())
            now = input_of(block, block.image, one.index)
            is_stale = now != input_of(block, before, one.index)
            assert torch.equal(now[is_stale], given[one.index][is_stale]), "in its own place"
    block.close()


def test_a_strided_tensor_of_a_list_is_laid_out_as_it_lies() -> None:
    slot = TensorSpec(64, "fp32", (100, 20), (24, 1))
    image = torch.randint(0, 255, (1 << 14,), dtype=torch.uint8)
    before = image.clone()
    values = {"a": [torch.zeros(1), torch.randn(100, 20)]}
    laid = Place(slot, "a", 1).laid_out(image, values)
    assert torch.equal(view(laid, replace(slot, offset=0)), values["a"][1])
    whole = before[64 : 64 + slot.nbytes].view(torch.float32)
    holes = torch.ones(len(whole), dtype=torch.bool)
    holes.as_strided((100, 20), (24, 1)).fill_(False)
    found, there = (x[holes].view(torch.int32) for x in (laid.view(torch.float32), whole))
    assert torch.equal(found, there)
    assert torch.equal(image, before)


def test_only_a_look_behind_the_write_tells_that_it_was_in_time(block: Any) -> None:
    late = LateInputs(block)
    one = SimpleNamespace(position=5)
    late.written = {1: (one, 0), 2: (one, 1), 3: (one, 2), 4: (one, None)}  # type: ignore[dict-item]
    assert late.were_in_time([4, 5, 0]) == {1, 3}
    assert late.tally.in_time == 2


def test_what_comes_too_late_or_is_held_up_tells_nothing() -> None:
    assert Tally().tells, "where nothing can come late, nothing is waited for"
    assert Tally(unwatched=8).tells, "calls so long cannot be watched"
    assert not Tally(late=12, in_time=0, unwatched=8).tells
    assert Tally(late=12, in_time=1).tells
    assert Tally(late=11, in_time=0).tells, "by chance"
    assert not Tally(late=11, in_time=0, held_up=4).tells
    assert not Tally(late=64, in_time=1).tells
    assert Tally(late=64, in_time=2).tells
    assert Tally(late=12, in_time=6, held_up=int(MOST_HELD_UP * 12)).tells
    assert not Tally(late=12, in_time=6, held_up=int(MOST_HELD_UP * 12) + 1).tells


def test_a_copy_engine_that_somebody_keeps_busy_is_noticed(block: Any, monkeypatch: Any) -> None:
    honest = Round(block, Runner(block, 100), 100).late.tally
    assert honest.held_up == 0

    def slow(self: HostPeek, rows: torch.Tensor, address: int, pitch_bytes: int) -> None:
        self._runner.pass_us(130)
        write(self, rows, address, pitch_bytes)

    write = HostPeek.write
    monkeypatch.setattr(HostPeek, "write", slow)
    tally = Round(block, Runner(block, 100), 100).late.tally
    assert not tally.tells
    assert tally.held_up > MOST_HELD_UP * tally.late


def test_positions_are_secret_and_never_the_first() -> None:
    rng = random.Random(1)
    found = [positions(64, rng) for _ in range(500)]
    assert all(len(one) == MOST_LATE and one == sorted(set(one)) for one in found)
    assert {i for one in found for i in one} == set(range(1, 64))
    assert {tuple(positions(4, rng)) for _ in range(50)} == {(1,), (2,), (3,)}
    assert positions(2, rng) == [1]


@given(nbytes=st.integers(LEAST_BYTES, 1 << 26), seed=st.integers(0, 1000))
def test_a_piece_has_rows_with_something_between_them(nbytes: int, seed: int) -> None:
    """Else the driver would not give it to the copy engine."""
    piece = piece_of(nbytes, random.Random(seed))
    assert ROWS[0] <= piece.rows <= ROWS[1]
    assert piece.pitch_bytes > piece.width_bytes >= 64
    assert piece.offset % ALIGN_BYTES == piece.pitch_bytes % ALIGN_BYTES == 0
    assert 0 <= piece.offset <= nbytes - piece.extent_bytes


def test_pieces_are_of_all_sizes() -> None:
    rng = random.Random(1)
    drawn = [piece_of(1 << 20, rng) for _ in range(500)]
    assert {p.rows for p in drawn} == set(range(8, 33))
    assert min(p.width_bytes for p in drawn) < 100 < 1500 < max(p.width_bytes for p in drawn)
    assert min(p.extent_bytes for p in drawn) < 1 << 17
    assert max(p.extent_bytes for p in drawn) > 1 << 19


def test_half_of_the_pieces_lie_in_the_smallest_argument() -> None:
    rng = random.Random(1)
    sizes = {"a": [100_000], "b": [8192], "c": [100, 50_000]}
    arguments = [
        [Place(TensorSpec(0, "uint8", (n,), (1,)), name, i) for i, n in enumerate(each)]
        for name, each in sizes.items()
    ]
    drawn = [choose(arguments, rng) for _ in range(2000)]
    assert 0.6 < sum(place.name == "b" for place in drawn) / len(drawn) < 0.73
    assert {place.number for place in drawn if place.name == "c"} >= {1}


def test_no_offsets_come_late_nor_what_is_structured() -> None:
    """A mixture of two lists of offsets leads anywhere, and of two sorted ones is not sorted."""
    roles: list[Role] = ["in", "in", "in", "in", "inout", "out", "in"]
    args = [
        Argument(name=f"a{i}", role=role, dtype="fp32", structured=i == 0)
        for i, role in enumerate(roles)
    ]
    slots: list[Any] = [
        TensorSpec(0, "fp16", (6000,), (1,)),
        TensorSpec(0, "fp16", (5000,), (1,)),
        TensorSpec(0, "int32", (5000,), (1,)),
        [TensorSpec(0, "uint8", (5000,), (1,)), TensorSpec(0, "uint8", (10,), (1,))],
        TensorSpec(0, "fp32", (5000,), (1,)),
        TensorSpec(0, "fp32", (5000,), (1,)),
        2.5,
    ]
    layout = arrange([[(a.role != "in", s) for a, s in zip(args, slots, strict=True)]])
    loan: Any = SimpleNamespace(
        layout=layout, problem=SimpleNamespace(spec=SimpleNamespace(args=args)), count=1
    )
    ((first, third),) = places(loan)
    assert [(p.name, p.number, p.slot.nbytes) for p in first] == [("a1", None, 10000)]
    (one,) = third
    assert (one.name, one.number) == ("a3", 0), "the other is too small to change much"
    assert {"int16", "int32", "int64"}.isdisjoint(MIXED)
    assert LateInputs.over(loan) is None


def test_a_pace_is_told_by_calls_seen_to_have_begun() -> None:
    pace = Pace(call_us=10)
    assert pace.begins_us(3) == 30
    pace.saw(-1, 50)
    assert pace.begins_us(3) == 30
    pace.saw(0, 105)  # seen late
    assert pace.begins_us(3) == 135
    pace.saw(2, 121)
    assert pace.begins_us(3) == 131
    pace.saw(1, 125)
    assert pace.begins_us(3) == 131, "what is behind the furthest tells nothing"
    for position in range(3, 8):
        pace.saw(position, 140 + 10 * position)
    assert pace.begins_us(8) == 220, "calls that take longer than told are followed"


# --- with a runner of its own, in real time

EARLY = "benchmark 'practice': inputs were read before their call began"
CALLS, CALL_S = 8, 0.1  # far longer than a busy machine holds a process up
IN_TURN = """
import time
import torch

def softmax(x, out):
    write(out, torch.softmax(x, dim=-1))

def write(out, answer):
    half = len(out) // 2
    out[:half] = answer[:half]
    time.sleep(0.1)
    out[half:] = answer[half:]
"""
ONE_AHEAD = (
    IN_TURN
    + """
places, answers, inputs = [], {}, {}

def softmax(x, out):
    place = x.data_ptr()
    if place not in places:
        places.append(place)
        inputs[place] = x
    following = (places + [None])[places.index(place) + 1]
    answer = answers.pop(place) if place in answers else torch.softmax(x, dim=-1)
    if following is not None:
        answers[following] = torch.softmax(inputs[following], dim=-1)
    write(out, answer)
"""
)


class InOrder(Bench):
    """Rounds that a message starts, in an order that is known, as that of a graph is."""

    def _order(self) -> list[int]:
        return list(range(self.calls))


class Memory:
    """Writes host memory at once."""

    def write(self, rows: torch.Tensor, address: int, pitch_bytes: int) -> None:
        for i, row in enumerate(rows):
            ctypes.memmove(address + i * pitch_bytes, row.data_ptr(), row.numel())

    def wait(self) -> None:
        pass


class Watching(MemoryLookout):
    """Over a loan in host memory, by the real clock."""

    def __init__(self, loan: Loan) -> None:
        super().__init__(loan)
        self._peek = Memory()

    def _read(self, places: list[int], row: int) -> None:
        time.sleep(1e-3)
        super()._read(places, row)

    def _read_seam(self, turn: int, row: int) -> float:
        time.sleep(1e-3)
        return super()._read_seam(turn, row)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "is_honest"), [(IN_TURN, True), (ONE_AHEAD, False)])
def test_a_real_runner_is_told_from_one_that_reads_ahead(
    tmp_path: Path, source: str, is_honest: bool
) -> None:
    problem = Problem.load(ROOT / "problems" / "softmax")
    case = next(c for c in problem.cases("benchmark", "cpu") if c.name == "practice")
    file = tmp_path / "softmax.py"
    file.write_text(source)
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    with make_sandbox("process").start(RunnerLimits.of(problem.spec.limits), "cpu") as runner:
        session = Session(runner, 500)
        greeting = greet(session, submission, "cpu")
        grading = Grading(problem, session, "cpu", 1, Record())
        grading.meet(greeting)
        grading.load(submission)
        loan = Loan(problem, case, grading.code.inputs(case, 1), CALLS, "cpu")
        loan.keep_probing = loan.probe  # type: ignore[method-assign]
        grading.lend(loan)
        bench = InOrder(grading, case, loan, CALLS, gate=True, captures=True)
        bench.lookout, bench.late = Watching(loan), LateInputs(loan)
        reasons: set[str] = set()
        rounds = 0
        is_told = False
        give_up_s = time.monotonic() + PATIENCE_S
        # By chance none of ten late sets may be telling, and where others have the processors
        # none may come in time: more are made until it is told.
        while rounds < 10 or not (is_told or time.monotonic() > give_up_s):
            rounds += 1
            bench._least_us = CALL_S * 1e6
            try:
                bench.round(rounds)
            except SubmissionFault as stop:
                reasons.add(stop.fault.reason)
            is_told = bench.late.tally.in_time > 1 and (is_honest or EARLY in reasons)
        loan.close()
    tally = bench.late.tally
    assert tally.late == rounds
    assert tally.in_time > 1
    assert (EARLY in reasons) != is_honest
    # Who reads ahead may do so while the part is being written, and is wrong by a mixture of both.
    mixture = "on inputs with a part that came shortly before the call"
    assert all(mixture in reason and not is_honest for reason in reasons - {EARLY})


@pytest.mark.parametrize(
    ("late", "stale", "is_accused"),
    [
        (set(), set(), False),
        ({0}, set(), False),  # right for stale inputs: they came too late
        ({1}, {1}, False),  # wrong in any case, as the check will say
        ({0, 2}, {0, 2}, False),
        ({1, 2}, {2}, True),
        ({1, 5}, set(), False),  # so is one that nothing of came late
    ],
)
def test_what_is_wrong_where_inputs_came_late(
    late: set[int], stale: set[int], is_accused: bool
) -> None:
    """Of sets 0 to 3 inputs came late, to 1 and 2 in time; wrong are `late`, and `stale` for stale
    inputs."""
    bench: Any = Bench.__new__(Bench)
    bench.case = Case(name="any", params={})
    state = [late]

    @contextlib.contextmanager
    def with_stale(index: int) -> Iterator[None]:
        state.append(stale)
        yield
        state.pop()

    inputs: Any = SimpleNamespace(
        written=dict.fromkeys(range(4)),
        tally=Tally(),
        stale=with_stale,
        were_in_time=lambda _: {1, 2},
    )
    lookout: Any = SimpleNamespace(first_unfinished=lambda: [])
    bench.look = lambda i, _: SimpleNamespace(failure="off" if i in state[-1] else None)
    if is_accused:
        with pytest.raises(SubmissionFault, match="inputs were read before their call began"):
            bench._expect_unread(inputs, lookout, list(range(8)), late)
    else:
        assert bench._expect_unread(inputs, lookout, list(range(8)), late) == {0, 3}
    assert inputs.tally.wrong == len(late & {0, 3})


def copying(output: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, Any]:
    """A bench of a kernel that copies, and its late inputs: the first hundred elements of set 3.
    `output` makes what the kernel wrote of its true inputs."""
    bench: Any = Bench.__new__(Bench)
    bench.case = Case(name="any", params={})
    true = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    image = true.clone()

    @contextlib.contextmanager
    def stale(index: int) -> Iterator[None]:
        assert index == 3
        image[:100] = -true[:100]
        yield
        image.copy_(true)

    out = Argument(name="out", role="out", dtype="fp32")
    code = SimpleNamespace(plain=lambda _, inputs: {"out": inputs["x"].clone()}, written=[out])
    bench.grading = SimpleNamespace(code=code, explained=[])
    bench.quick = object()
    bench.loan = SimpleNamespace(
        inputs=lambda _: {"x": image}, outputs=lambda _: {"out": output(true)}
    )
    bench.spot_bounds = lambda _: Tolerance(atol=0, rtol=1e-6, rel_l2=1e-6)
    return bench, SimpleNamespace(stale=stale)


@pytest.mark.parametrize("count", [0, 100, 50])
def test_inputs_that_came_while_they_were_read_explain_an_output(count: int) -> None:
    bench, inputs = copying(lambda x: torch.cat([-x[:count], x[count:]]))
    for _ in range(2 * UNEXPLAINED):
        bench._expect_explained(inputs, {3})
    assert bench.grading.explained == [True] * 2 * UNEXPLAINED


@pytest.mark.parametrize("undone", [torch.zeros_like, poisoned])
def test_who_leaves_undone_what_tells_nothing_is_wrong_most_of_the_time(
    undone: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    bench, inputs = copying(undone)
    bench._expect_explained(inputs, set())
    for _ in range(UNEXPLAINED - 1):  # a mixture may do that now and then
        bench._expect_explained(inputs, {3})
    reason = r"\d{4} elements of 'out' are wrong or were never written, whenever"
    with pytest.raises(SubmissionFault, match=reason) as stop:
        bench._expect_explained(inputs, {3})
    assert stop.value.fault.verdict is Verdict.WRONG_ANSWER
    bench.grading.explained = [True] * 20
    for _ in range(20):
        bench._expect_explained(inputs, {3})
    with pytest.raises(SubmissionFault, match=reason):
        bench._expect_explained(inputs, {3})


def test_an_answer_that_is_a_view_of_the_inputs_is_taken_as_it_was() -> None:
    bench, inputs = copying(lambda x: torch.cat([-x[:50], x[50:]]))
    bench.grading.code.plain = lambda _, values: {"out": values["x"]}
    bench._expect_explained(inputs, {3})
    assert bench.grading.explained == [True]


def test_where_nothing_looked_first_what_is_right_counts_for_nothing() -> None:
    bench, inputs = copying(torch.zeros_like)
    bench.quick, bench._is_right = None, lambda _: True
    bench._expect_explained(inputs, {3})
    assert bench.grading.explained == []


def mixtures_told(operator: Callable[[torch.Tensor], torch.Tensor], x: Callable[[], Any]) -> float:
    """The share of honest outputs that a mixture of two sets does not explain: of one piece of the
    inputs that is stale some rows are true."""
    rng = random.Random(3)
    told = 0
    for _ in range(400):
        true, other = x(), x()
        piece = piece_of(true.nbytes, rng)
        stale, mixed = true.clone(), true.clone()
        rows = rng.randrange(piece.rows + 1)
        for image, count in (stale, piece.rows), (mixed, rows):
            there = piece.of(image.view(-1).view(torch.uint8))
            there[:count] = piece.of(other.view(-1).view(torch.uint8))[:count]
        out, right, wrong = map(operator, (mixed, true, stale))
        told += bool(
            errors_beyond_mixed_inputs(out, right, wrong, Tolerance(atol=0, rtol=1e-3, rel_l2=1e-3))
        )
    return told / 400


@pytest.mark.parametrize(
    ("operator", "x"),
    [
        (lambda x: x.sort().values, lambda: torch.randint(0, 2, (16384,), dtype=torch.uint8)),
        (lambda x: (x > 2.5).sum()[None], lambda: torch.randn(65536)),
        (lambda x: x[x > 2.5][:64].sort().values, lambda: torch.randn(65536)),
        (lambda x: x.argmax(-1), lambda: torch.randn(16, 1024)),
        (lambda x: x.mean().bfloat16()[None], lambda: torch.randn(65536)),
        (lambda x: torch.softmax(x, -1), lambda: torch.randn(16, 1024)),
    ],
)
def test_a_mixture_seldom_looks_like_what_was_left_undone(
    operator: Callable[[torch.Tensor], torch.Tensor], x: Callable[[], Any]
) -> None:
    assert mixtures_told(operator, x) < 0.25
