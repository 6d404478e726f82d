"""The arithmetic of `benchmarks/late_inputs.py`, and its rounds in host memory and made-up time."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.late_inputs import (
    CHUNK_BYTES,
    HEAD,
    WORDS,
    LateLookout,
    Pace,
    Place,
    Quill,
    Tally,
    Written,
    chunk,
    input_places,
    late_round,
    next_lead,
    positions,
    spread,
)
from benchmarks.verdicts import ROOT
from grader.arena import Slot, Value, arrange
from grader.judge.bench import Bench
from grader.judge.block import Block
from grader.judge.grade import greet
from grader.judge.grading import Grading
from grader.judge.loan import Loan
from grader.judge.lookout import BEFORE, MOST_READS
from grader.judge.record import Record
from grader.judge.session import Session
from grader.problem import Problem
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits
from grader.submission import Submission

COUNT = 16
ORDER = list(range(COUNT))
ELEMENTS = 4096
BEGIN_US = 100.0
"""From when the gate opens until the first call begins."""
PARTS = 4
"""Pieces in which a call writes its outputs."""


class Runner:
    """Calls a round's sets one after the other, in made-up time. Each reads its inputs when it
    begins, or so many calls too soon, and writes three times them and one, piece by piece."""

    def __init__(self, block: Block, call_us: float, too_soon: float = 0.0) -> None:
        self._block = block
        self.now_us = 0.0
        self._todo: list[tuple[float, Callable[[], None]]] = []
        self._read: dict[int, torch.Tensor] = {}
        for position, index in enumerate(ORDER):
            begin_us = BEGIN_US + position * call_us
            self._at(max(0.0, begin_us - too_soon * call_us), self._reader(index))
            for part in range(PARTS):
                self._at(begin_us + (part + 1) / PARTS * call_us, self._writer(index, part))
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
            self._read[index] = inputs(self._block, self._block.lent)[index] * 3 + 1

        return read

    def _writer(self, index: int, part: int) -> Callable[[], None]:
        piece = slice(part * ELEMENTS // PARTS, (part + 1) * ELEMENTS // PARTS)

        def write() -> None:
            tail = self._block.lent[self._block.head_bytes :].view(torch.int64).view(COUNT, -1)
            tail[index, piece] = self._read[index][piece]

        return write


class HostQuill(Quill):
    """Reads and writes host memory, and takes its time."""

    def __init__(self, runner: Runner) -> None:
        self.words = torch.zeros(2 * WORDS, dtype=torch.int64)
        self._runner = runner

    def write(self, source: int, address: int, nbytes: int) -> None:
        self._runner.pass_us(4)
        ctypes.memmove(address, source, nbytes)
        self._runner.pass_us(1)

    def read(self, address: int, pitch_bytes: int, count: int, at: int) -> None:
        self._runner.pass_us(3)
        for i in range(count):
            self.words[at + i] = ctypes.c_int64.from_address(address + i * pitch_bytes).value

    def wait(self) -> None:
        self._runner.pass_us(1)


class HostLookout(LateLookout):
    """Over a block in host memory."""

    def __init__(self, block: Block, runner: Runner) -> None:
        self._block = block
        self._runner = runner
        self._set_bytes = block.tail_bytes // block.count
        self._outputs = [(block.head_bytes + at, -(-nbytes // 8)) for at, nbytes in block.written]
        self._seen = torch.zeros((MOST_READS + 2 * BEFORE, block.count), dtype=torch.int64)
        self.prepare([[[place]] for place in places(block)], HostQuill(runner))

    def _read(self, places: list[int], row: int) -> None:
        self._runner.pass_us(8)
        self._seen[row : row + len(places)] = self._words(self._block.lent, 0, places)
        self._runner.pass_us(7)

    def _now_ns(self) -> int:
        self._runner.pass_us(0.5)
        return int(self._runner.now_us * 1e3)


def places(block: Block) -> list[Place]:
    """The input of each set."""
    slots = [values[0] for values in block.layout.sets]
    return [(slot.offset, slot.nbytes) for slot in slots if isinstance(slot, Slot)]


def inputs(block: Block, buffer: torch.Tensor) -> list[torch.Tensor]:
    """The input of each set, int64, as it lies in a buffer."""
    return [buffer[at : at + nbytes].view(torch.int64) for at, nbytes in places(block)]


def new_block(item_bytes: int) -> Block:
    words = Slot(0, "int64", (ELEMENTS,), (1,))
    made = Block(arrange([[(False, words), (True, words)]] * COUNT), item_bytes, "cpu")
    made.keep_probing = made.probe  # type: ignore[method-assign]
    return made


@pytest.fixture(params=[8, 0], ids=["outputs", "state"])
def block(request: pytest.FixtureRequest) -> Iterator[Block]:
    made = new_block(request.param)
    yield made
    made.close()


def a_round(
    block: Block, runner: Runner, call_us: float, late: int = 6, lead: float = 0.0, seed: int = 1
) -> tuple[HostLookout, set[int]]:
    """A round of which the judge believes that calls take so long; and the sets that are wrong."""
    rng = random.Random(seed)
    block.image.random_()
    lookout = HostLookout(block, runner)
    lookout.call_us, lookout.begin_us, lookout.lead = call_us, BEGIN_US, lead
    lookout.withhold(ORDER, late, rng)
    block.ready(ORDER)
    lookout.aim(ORDER)
    block.publish(ORDER)
    lookout.watch(runner.goes_on)
    block.probe()
    block.collect()
    for one in lookout.written:
        lookout.put_back(one.late)
    outputs = block.snapshot.view(torch.int64).view(COUNT, -1)[:, :ELEMENTS]
    wanted = [values * 3 + 1 for values in inputs(block, block.image)]
    return lookout, {i for i in ORDER if not torch.equal(outputs[i], wanted[i])}


def in_time(block: Block, lookout: LateLookout) -> set[int]:
    return {w.late.index for w in lookout.written if w.is_in_time(block.snapshot)}


def test_an_honest_round_has_none_wrong_of_those_in_time(block: Block) -> None:
    lookout, wrong = a_round(block, Runner(block, 100), 100, lead=0.5)
    assert len(in_time(block, lookout)) == 6
    assert not wrong


def test_inputs_that_were_read_too_soon_are_found(block: Block) -> None:
    lookout, wrong = a_round(block, Runner(block, 100, too_soon=2), 100, lead=0.5)
    assert in_time(block, lookout) == wrong
    assert len(wrong) == 6


def test_after_a_round_all_inputs_are_true(block: Block) -> None:
    for believed_us in (10, 100, 1000):
        lookout, _ = a_round(block, Runner(block, 100), believed_us)
        assert len(lookout.written) == 6
        head = slice(0, block.head_bytes)
        assert torch.equal(block.lent[head], block.image[head])


def test_writes_that_come_too_late_are_doubtful(block: Block) -> None:
    """Nothing was withheld for longer than the round, and an honest call may be wrong then."""
    runner = Runner(block, 100)
    lookout, wrong = a_round(block, runner, 100, lead=-3)
    late = {w.late.index for w in lookout.written}
    assert not in_time(block, lookout)
    assert wrong == late


@settings(max_examples=40)
@given(
    call_us=st.floats(6, 300),
    believed=st.floats(0.3, 3),
    lead=st.floats(-2, 3),
    seed=st.integers(0, 1000),
    item_bytes=st.sampled_from([8, 0]),
)
def test_an_honest_round_is_never_blamed(
    call_us: float, believed: float, lead: float, seed: int, item_bytes: int
) -> None:
    block = new_block(item_bytes)
    runner = Runner(block, call_us)
    lookout, wrong = a_round(block, runner, call_us * believed, 15, lead, seed)
    assert not in_time(block, lookout) & wrong
    assert wrong <= {w.late.index for w in lookout.written}
    block.close()


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
places, answers = [], {}

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

inputs = {}
"""
)


class InOrder(Bench):
    """Rounds that a message starts, in an order that is known, as that of a graph is."""

    def _order(self) -> list[int]:
        return list(range(self.calls))


class Memory(Quill):
    """Reads and writes host memory at once."""

    def __init__(self) -> None:
        self.words = torch.zeros(2 * WORDS, dtype=torch.int64)

    def write(self, source: int, address: int, nbytes: int) -> None:
        ctypes.memmove(address, source, nbytes)

    def read(self, address: int, pitch_bytes: int, count: int, at: int) -> None:
        for i in range(count):
            self.words[at + i] = ctypes.c_int64.from_address(address + i * pitch_bytes).value

    def wait(self) -> None:
        pass


class Watching(LateLookout):
    """Over a loan in host memory, by the real clock."""

    def __init__(self, loan: Loan) -> None:
        self._block = loan
        self._set_bytes = loan.tail_bytes // loan.count
        self._outputs = [(loan.head_bytes + at, -(-nbytes // 8)) for at, nbytes in loan.written]
        self._seen = torch.zeros((MOST_READS + 2 * BEFORE, loan.count), dtype=torch.int64)
        self._reads = 0
        self.prepare(input_places(loan.problem, loan.layout), Memory())

    def _read(self, places: list[int], row: int) -> None:
        self._seen[row : row + len(places)] = self._words(self._block.lent, 0, places)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "is_honest"), [(IN_TURN, True), (ONE_AHEAD, False)])
def test_rounds_of_a_real_runner_tell(tmp_path: Path, source: str, is_honest: bool) -> None:
    problem = Problem.load(ROOT / "problems" / "softmax")
    case = next(c for c in problem.cases("benchmark", "cpu") if c.name == "practice")
    file = tmp_path / "softmax.py"
    file.write_text(source)
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    tally = Tally()
    with make_sandbox("process").start(RunnerLimits.of(problem.spec.limits), "cpu") as runner:
        session = Session(runner, 60)
        greeting = greet(session, submission, "cpu")
        grading = Grading(problem, session, "cpu", 1, Record())
        grading.meet(greeting)
        grading.load(submission)
        template = grading.code.inputs(case, 1)
        loan = Loan(problem, case, template, CALLS, "cpu")
        loan.keep_probing = loan.probe  # type: ignore[method-assign]
        grading.lend(loan)
        bench = InOrder(grading, case, loan, CALLS)
        bench.round(0)
        lookout = Watching(loan)
        lookout.call_us, lookout.begin_us = CALL_S * 1e6, 0.0
        for number in range(1, 5):
            late_round(bench, lookout, number, 5, tally)
        loan.close()
    assert tally.writes == 20
    assert tally.telling > 0
    assert tally.others_wrong == 0
    assert (tally.wrong == 0) is is_honest


def test_sets_that_are_all_alike_withhold_nothing(block: Block) -> None:
    lookout = HostLookout(block, Runner(block, 100))
    block.image.fill_(7)
    lookout.withhold(ORDER, 6, random.Random(1))
    lookout.aim(ORDER)
    lookout.watch(lambda: False)
    assert lookout.written == []


def test_stale_words_are_another_set_s_true_ones() -> None:
    block = new_block(8)
    block.image.random_()
    true = [values.clone() for values in inputs(block, block.image)]
    lookout = HostLookout(block, Runner(block, 100))
    lookout.withhold(ORDER, COUNT - 1, random.Random(1))
    for one, (at, _) in zip(lookout._left, places(block)[1:], strict=True):
        words = slice((one.part.start - at) // 8, (one.part.stop - at) // 8)
        stale = block.image[one.part].view(torch.int64)
        assert torch.equal(one.true.view(torch.int64), true[one.index][words])
        assert any(
            torch.equal(stale, values[words]) for i, values in enumerate(true) if i != one.index
        )
    block.close()


def test_a_write_is_in_time_while_a_word_is_still_to_change() -> None:
    snapshot = torch.arange(8).view(torch.uint8)

    def written(seen: list[int]) -> bool:
        late = None
        return Written(late, 1.0, [2, 5, 7], seen).is_in_time(snapshot)  # type: ignore[arg-type]

    assert not written([2, 5, 7])
    assert written([2, 5, 0])


def test_positions_are_one_in_each_stretch_and_never_the_first() -> None:
    rng = random.Random(1)
    found = [positions(64, 6, rng) for _ in range(500)]
    assert all(len(one) == 6 and one == sorted(set(one)) for one in found)
    assert {i for one in found for i in one} == set(range(1, 64))
    assert positions(4, 6, rng) == [1, 2, 3]
    assert positions(1, 6, rng) == []


def test_a_chunk_lies_in_a_tensor_and_half_of_them_in_the_smallest_argument() -> None:
    rng = random.Random(1)
    arguments = [[(512, 100_000)], [(200_000, 8192)], [(300_000, 12), (400_000, 50_000)]]
    drawn = [chunk(arguments, rng) for _ in range(2000)]
    for argument, tensor, start, nbytes in drawn:
        size = arguments[argument][tensor][1]
        assert nbytes == min(CHUNK_BYTES, size)
        assert start % 16 == 0
        assert start + nbytes <= size
    assert 0.6 < sum(argument == 1 for argument, *_ in drawn) / len(drawn) < 0.73
    starts = {start for argument, _, start, _ in drawn if argument == 1}
    assert (min(starts), max(starts)) == (0, 8192 - CHUNK_BYTES)


def test_words_are_spread_over_all_there_are() -> None:
    for words in (1, 31, 32, 33, 1000, 12_345):
        for _ in range(20):
            found = spread(100, words)
            assert 1 <= len(found) <= WORDS
            assert 100 <= found[0] <= found[-1] < 100 + words


def test_a_pace_is_told_by_calls_seen_to_have_begun() -> None:
    pace = Pace(call_us=10, begin_us=90)
    assert pace.begins_us(3) == 120
    pace.saw(0, 105)  # seen late
    assert pace.first_us == 105
    assert pace.begins_us(3) == 135
    pace.saw(2, 122)
    pace.saw(1, 200)  # nothing new
    assert pace.begins_us(3) == 132
    for position in range(3, 7):  # calls take 12 µs, not 10
        pace.saw(position, 102 + 12 * position)
    assert pace.begins_us(7) == 102 + 3 * 2 + 70


def test_writes_come_sooner_when_few_were_in_time() -> None:
    assert next_lead(0, 2, 6) == 0.5
    assert next_lead(0.5, 4, 6) == 0.5
    assert next_lead(0.5, 6, 6) == 0.4
    assert next_lead(0, 6, 6) == 0
    assert next_lead(0.5, 0, 0) == 0.5


def test_a_row_counts_what_is_in_time_and_what_is_not() -> None:
    tally = Tally(usual_us=[10, 12, 11], late_us=[10.5], took_us=[])
    tally.add(is_in_time=True, is_wrong=True, is_telling=True)
    tally.add(is_in_time=True, is_wrong=False, is_telling=False)
    tally.add(is_in_time=True, is_wrong=False, is_telling=True)
    tally.add(is_in_time=False, is_wrong=True, is_telling=True)
    tally.add(is_in_time=False, is_wrong=False, is_telling=True)
    line = tally.row("gemv_4k", 64)
    start = "| gemv_4k | 64 | 5 | 3 | 2 | 2 | **1** | 2 | 1 | 0 |"
    assert line == start + " 11.00 | 10.50 | – |  |"
    assert len({part.count("|") for part in [line, *HEAD.splitlines()]}) == 1


def test_only_inputs_that_stay_as_they_are_come_late() -> None:
    problem = Problem.load(ROOT / "problems" / "multi_tensor_adamw")
    tensors = [Slot(0, "fp32", (8,), (1,)), Slot(0, "fp32", (0,), (1,))]
    values: list[tuple[bool, Value]] = [
        (a.role != "in", 1.0 if a.kind == "scalar" else tensors) for a in problem.spec.args
    ]
    layout = arrange([values] * 2)
    found = input_places(problem, layout)
    assert [len(arguments) for arguments in found] == [1, 1]  # the gradients
    for ((offset, nbytes),) in [places for (places,) in found]:
        assert nbytes == 32
        assert offset < layout.writable_at
