"""Deferred inputs, in host memory and simulated time: a call that reads them too soon is found, and
no other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.arena import TensorSpec, arrange
from grader.arena.layout import view
from grader.judge.correctness.check import errors_beyond_mixed_inputs
from grader.judge.gpu.dma import CopyEngine
from grader.judge.integrity.deferred_inputs import (
    CallPace,
    DeferralCounts,
    DeferredInputs,
    InputTensor,
    deferrable,
    draw_piece,
    draw_positions,
    draw_tensor,
)
from grader.judge.integrity.policy import CALL_ORDER
from grader.judge.integrity.policy import DEFERRED as POLICY
from grader.problem.spec import Argument, Role, Tolerance
from tests.judge.host_copies import HostCopyEngine
from tests.judge.simulated_round import (
    ELEMENTS,
    ORDER,
    SimulatedRound,
    SimulatedRunner,
    TimedCopies,
    first_of,
    input_of,
    inputs_of,
    new_block,
    other_inputs,
    wrong,
)

DEFERRED = POLICY.most_sets
ROUNDS = 24


@pytest.fixture(params=[8, 0], ids=["outputs", "state"])
def block(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = new_block(request.param)
    yield made
    made.close()


class Round(SimulatedRound):
    """A round, and which of its deferred inputs were written in time."""

    def __init__(
        self,
        block: Any,
        runner: SimulatedRunner,
        call_us: float,
        seed: int = 1,
        deferred: DeferredInputs | None = None,
        write_us: float | None = None,
    ) -> None:
        super().__init__(block, runner, call_us, seed, deferred, write_us)
        self.in_time = self.deferred.in_time(self.watch.first_unfinished())
        self.overlapped = self.watch.ran_concurrently() or self.watch.overlaps() > 0


@pytest.mark.parametrize("at_end", [False, True], ids=["piece by piece", "at the end"])
@pytest.mark.parametrize("call_us", [12.0, 40.0, 200.0])
def test_an_honest_round_is_right_where_inputs_were_in_time(
    block: Any, call_us: float, at_end: bool
) -> None:
    in_time = 0
    for seed in range(ROUNDS):
        runner = SimulatedRunner(block, call_us, at_end=at_end, first=first_of(seed))
        found = Round(block, runner, call_us, seed)
        assert len(found.deferred.written) == DEFERRED
        assert not found.wrong & found.in_time
        assert not found.overlapped
        in_time += len(found.in_time)
    assert in_time >= ROUNDS * DEFERRED / 10


@pytest.mark.parametrize("at_end", [False, True], ids=["piece by piece", "at the end"])
@pytest.mark.parametrize(("call_us", "too_soon"), [(12.0, 7), (40.0, 4), (200.0, 2), (200.0, 1)])
def test_inputs_that_were_read_too_soon_are_detected(
    block: Any, call_us: float, too_soon: float, at_end: bool
) -> None:
    """Though outputs are written in turn. They are right for the stale inputs."""
    caught = 0
    for seed in range(ROUNDS):
        runner = SimulatedRunner(block, call_us, too_soon, at_end, first_of(seed))
        found = Round(block, runner, call_us, seed)
        assert not found.overlapped
        caught += len(found.wrong & found.in_time)
        for i in found.wrong:
            with found.deferred.stale(i):
                assert wrong(block) == found.wrong - {i}
        assert wrong(block) == found.wrong
    assert caught >= (ROUNDS * DEFERRED / 10 if too_soon > 1 else 1)


@pytest.mark.parametrize("at_end", [False, True], ids=["piece by piece", "at the end"])
@pytest.mark.parametrize("call_us", [12.0, 40.0])
def test_writes_are_timed_for_a_slow_copy_engine(call_us: float, at_end: bool) -> None:
    """As on hosts where a write takes 20 µs and a sample 60."""
    block, caught = new_block(8), 0
    in_time: dict[bool, int] = {True: 0, False: 0}
    experienced = DeferredInputs(block)
    for seed in range(ROUNDS):
        for is_known in in_time:
            runner = SimulatedRunner(block, call_us, 0.0, at_end, first_of(seed), engine=4.0)
            deferred = experienced if is_known else DeferredInputs(block)
            found = Round(block, runner, call_us, seed, deferred)
            assert not found.wrong & found.in_time
            in_time[is_known] += len(found.in_time)
        runner = SimulatedRunner(block, call_us, 7.0, at_end, first_of(seed), engine=4.0)
        found = Round(block, runner, call_us, seed, experienced)
        caught += len(found.wrong & found.in_time)
    block.close()
    assert in_time[True] > ROUNDS * DEFERRED / 2
    assert in_time[True] > 1.5 * in_time[False]
    assert caught > ROUNDS * DEFERRED / 4


def test_slowing_some_writes_does_not_make_the_next_ones_earlier(block: Any) -> None:
    deferred = DeferredInputs(block)
    assert deferred._trip_us() == POLICY.trip_us
    deferred._trips_us.extend([30.0] * POLICY.trips)
    deferred._trips_us.extend([90.0] * (POLICY.trips * 3 // 4 - 1))
    assert deferred._trip_us() == 30
    deferred._trips_us.extend([90.0] * POLICY.trips)
    assert deferred._trip_us() == 90, "as on a slow host"


def test_after_a_round_all_inputs_are_true(block: Any) -> None:
    for expected_us in (10, 100, 1000):
        found = Round(block, SimulatedRunner(block, 100), expected_us)
        assert len(found.deferred.written) == DEFERRED
        head = slice(0, block.head_bytes)
        assert torch.equal(block.lent[head], block.shadow[head])


def test_inputs_are_published_stale_and_the_shadow_is_restored(block: Any) -> None:
    deferred = DeferredInputs(block)
    block.shadow.random_()
    before = block.shadow.clone()
    deferred.arm(ORDER, 10.0, random.Random(1), other_inputs)
    assert not torch.equal(block.shadow, before)
    block.publish(ORDER)
    head = slice(8, block.head_bytes)
    assert not torch.equal(block.lent[head], before[head])
    deferred.begin()
    deferred.write_rest(HostCopyEngine(1), is_over=True)
    assert torch.equal(block.lent[head], before[head])
    assert not torch.equal(block.shadow, before)
    deferred.restore()
    assert torch.equal(block.shadow[8:], before[8:])


def test_write_due_says_whether_anything_was_written(
    block: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_due, found = DeferredInputs.write_due, []

    def noted(deferred: DeferredInputs, copies: CopyEngine, sample: int) -> bool:
        before = len(deferred.written)
        wrote = write_due(deferred, copies, sample)
        found.append((wrote, len(deferred.written) > before))
        return wrote

    monkeypatch.setattr(DeferredInputs, "write_due", noted)
    Round(block, SimulatedRunner(block, 100), 100)
    assert set(found) == {(True, True), (False, False)}


def test_writes_after_their_call_are_not_in_time(
    block: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An honest call that read stale inputs is wrong, and no sample proves that they were true."""
    policy = replace(POLICY, trip_us=-400.0)
    monkeypatch.setattr("grader.judge.integrity.deferred_inputs.POLICY", policy)
    found = Round(block, SimulatedRunner(block, 100), 100)
    assert not found.in_time
    assert found.wrong == set(found.deferred.written)


@settings(max_examples=40, deadline=None)
@given(
    call_us=st.floats(6, 300),
    expected=st.floats(0.3, 3),
    at_end=st.booleans(),
    seed=st.integers(0, 1000),
    item_bytes=st.sampled_from([8, 0]),
)
def test_an_honest_round_is_never_blamed(
    call_us: float, expected: float, at_end: bool, seed: int, item_bytes: int
) -> None:
    block = new_block(item_bytes)
    runner = SimulatedRunner(block, call_us, at_end=at_end)
    found = Round(block, runner, call_us * expected, seed)
    assert not found.in_time & found.wrong
    assert found.wrong <= set(found.deferred.written)
    block.close()


def test_calls_after_the_last_sample_are_not_counted(
    block: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = replace(CALL_ORDER, most_samples=100)
    monkeypatch.setattr("grader.judge.integrity.call_order.POLICY", policy)
    found = Round(block, SimulatedRunner(block, 200), 200)
    sampled = {i for i, (_, sample) in found.deferred.written.items() if sample is not None}
    assert len(sampled) < len(found.deferred.written) == DEFERRED
    assert found.deferred.counts.deferred == len(sampled)
    assert found.in_time <= sampled
    assert found.wrong <= set(found.deferred.written)


def test_inputs_written_when_the_round_is_over_count_and_are_not_in_time(block: Any) -> None:
    found = Round(block, SimulatedRunner(block, 0.001), 1000)
    assert {sample for _, sample in found.deferred.written.values()} == {None}
    assert found.deferred.counts.deferred == DEFERRED
    assert not found.in_time


def test_identical_sets_are_not_deferred(block: Any) -> None:
    deferred = DeferredInputs(block)
    block.shadow.zero_()
    zeros = {"x": torch.zeros(ELEMENTS, dtype=torch.float64)}
    deferred.arm(ORDER, 10.0, random.Random(1), lambda _: zeros)
    deferred.begin()
    deferred.write_rest(HostCopyEngine(1), is_over=True)
    assert deferred.written == {}
    assert deferred.counts.suffice


def test_stale_words_occur_nowhere_in_lent_memory() -> None:
    block = new_block(8)
    block.shadow.random_()
    before = block.shadow.clone()
    lent = {word for x in inputs_of(block, before) for word in x.tolist()}
    deferred = DeferredInputs(block)
    drawn: dict[int, torch.Tensor] = {}

    def kept(index: int) -> dict[str, Any]:
        made = other_inputs(index)
        drawn[index] = made["x"].view(torch.int64)
        return made

    for seed in range(20):
        block.shadow.copy_(before)
        deferred.arm(ORDER, 10.0, random.Random(seed), kept)
        assert len(deferred._left) == DEFERRED
        for one in deferred._left:
            assert ORDER[one.position] == one.index
            assert torch.equal(one.true, one.piece.of(before))
            assert torch.equal(one.stale, one.piece.of(block.shadow))
            assert lent.isdisjoint(one.stale.reshape(-1).view(torch.int64).tolist())
            now = input_of(block, block.shadow, one.index)
            is_stale = now != input_of(block, before, one.index)
            assert torch.equal(now[is_stale], drawn[one.index][is_stale]), "in its own place"
    block.close()


def test_a_strided_tensor_of_a_list_is_laid_out_as_it_lies() -> None:
    slot = TensorSpec(64, "fp32", (100, 20), (24, 1))
    shadow = torch.randint(0, 255, (1 << 14,), dtype=torch.uint8)
    before = shadow.clone()
    values = {"a": [torch.zeros(1), torch.randn(100, 20)]}
    laid = InputTensor(slot, "a", 1).laid_out(shadow, values)
    assert torch.equal(view(laid, replace(slot, offset=0)), values["a"][1])
    whole = before[64 : 64 + slot.nbytes].view(torch.float32)
    holes = torch.ones(len(whole), dtype=torch.bool)
    holes.as_strided((100, 20), (24, 1)).fill_(False)
    found, there = (x[holes].view(torch.int32) for x in (laid.view(torch.float32), whole))
    assert torch.equal(found, there)
    assert torch.equal(shadow, before)


def test_only_a_sample_behind_the_write_shows_that_it_was_in_time(block: Any) -> None:
    deferred = DeferredInputs(block)
    one: Any = SimpleNamespace(position=5)
    deferred.written = {1: (one, 0), 2: (one, 1), 3: (one, 2), 4: (one, None)}
    assert deferred.in_time([4, 5, 0]) == {1, 3}
    assert deferred.counts.in_time == 2
    assert deferred.in_time([5, 4, 6]) == {2}
    assert deferred.counts.in_time == 3


def test_inputs_that_come_too_late_or_are_held_up_do_not_suffice() -> None:
    def suffices(deferred: int, in_time: int, held_up: int = 0) -> bool:
        return DeferralCounts(deferred, in_time, held_up).suffice

    assert DeferralCounts().suffice, "where nothing can be deferred"
    assert not suffices(12, 0)
    assert suffices(12, 1)
    assert suffices(11, 0), "by chance"
    assert not suffices(11, 0, held_up=4)
    assert not suffices(64, 1)
    assert suffices(64, 2)
    assert suffices(12, 6, held_up=int(POLICY.most_held_up * 12))
    assert not suffices(12, 6, held_up=int(POLICY.most_held_up * 12) + 1)


def test_a_copy_engine_that_is_kept_busy_is_noticed(block: Any) -> None:
    honest = Round(block, SimulatedRunner(block, 100), 100).deferred.counts
    assert honest.deferred == DEFERRED
    assert honest.held_up == 0
    busy = Round(block, SimulatedRunner(block, 100), 100, write_us=134).deferred.counts
    assert not busy.suffice
    assert busy.held_up > POLICY.most_held_up * busy.deferred


def test_the_time_of_a_write_behind_a_probe_is_not_remembered(block: Any) -> None:
    runner = SimulatedRunner(block, 10)
    copies = TimedCopies(0, runner)
    for is_closing in (True, False):
        deferred = DeferredInputs(block)
        block.shadow.random_()
        deferred.arm(ORDER, 0.0, random.Random(1), other_inputs)
        deferred.begin()
        assert deferred.write_due(copies, 0)
        deferred.saw(0, is_closing)
        assert len(deferred._trips_us) == (not is_closing)
        deferred.saw(1, False)
        assert len(deferred._trips_us) == (not is_closing), "no write was before this sample"


def test_positions_are_secret_and_never_the_first() -> None:
    rng = random.Random(1)
    found = [draw_positions(64, rng) for _ in range(500)]
    assert all(len(one) == POLICY.most_sets and one == sorted(set(one)) for one in found)
    assert {i for one in found for i in one} == set(range(1, 64))
    assert {tuple(draw_positions(4, rng)) for _ in range(50)} == {(1,), (2,), (3,)}
    assert draw_positions(2, rng) == [1]


@given(nbytes=st.integers(POLICY.least_bytes, 1 << 26), seed=st.integers(0, 1000))
def test_the_rows_of_a_piece_have_gaps(nbytes: int, seed: int) -> None:
    """The driver would not give it to the copy engine otherwise."""
    piece = draw_piece(nbytes, random.Random(seed))
    assert POLICY.rows[0] <= piece.rows <= POLICY.rows[1]
    assert piece.pitch_bytes > piece.width_bytes >= 64
    assert piece.offset % POLICY.align_bytes == piece.pitch_bytes % POLICY.align_bytes == 0
    assert piece.width_bytes % POLICY.align_bytes == 0
    assert 0 <= piece.offset <= nbytes - piece.extent_bytes


def test_pieces_are_of_all_sizes() -> None:
    rng = random.Random(1)
    drawn = [draw_piece(1 << 20, rng) for _ in range(500)]
    assert {p.rows for p in drawn} == set(range(8, 33))
    assert min(p.width_bytes for p in drawn) < 100 < 1500 < max(p.width_bytes for p in drawn)
    assert min(p.extent_bytes for p in drawn) < 1 << 17
    assert max(p.extent_bytes for p in drawn) > 1 << 19


def test_half_of_the_pieces_lie_in_the_smallest_argument() -> None:
    rng = random.Random(1)
    sizes = {"a": [100_000], "b": [8192], "c": [100, 50_000]}
    arguments = [
        [InputTensor(TensorSpec(0, "uint8", (n,), (1,)), name, i) for i, n in enumerate(each)]
        for name, each in sizes.items()
    ]
    drawn = [draw_tensor(arguments, rng) for _ in range(2000)]
    assert 0.6 < sum(tensor.argument == "b" for tensor in drawn) / len(drawn) < 0.73
    assert {tensor.number for tensor in drawn if tensor.argument == "c"} >= {1}


def test_offsets_and_structured_inputs_are_not_deferred() -> None:
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
    sets: Any = SimpleNamespace(
        layout=layout, problem=SimpleNamespace(spec=SimpleNamespace(args=args)), count=1
    )
    ((first, third),) = deferrable(sets)
    assert [(t.argument, t.number, t.slot.nbytes) for t in first] == [("a1", None, 10000)]
    (one,) = third
    assert (one.argument, one.number) == ("a3", 0), "the other is too small to change much"
    assert {"int16", "int32", "int64"}.isdisjoint(POLICY.dtypes)
    assert DeferredInputs.over(sets) is None


def test_the_pace_follows_calls_that_were_seen_to_begin() -> None:
    pace = CallPace(call_us=10)
    assert pace.begins_us(3) == 30
    pace.saw(-1, 50)
    assert pace.begins_us(3) == 30
    pace.saw(0, 105)  # seen some time after it began
    assert pace.begins_us(3) == 135
    pace.saw(2, 121)
    assert pace.begins_us(3) == 131
    pace.saw(1, 125)
    assert pace.begins_us(3) == 131, "a call before the furthest changes nothing"
    for position in range(3, 8):
        pace.saw(position, 140 + 10 * position)
    assert pace.begins_us(8) == 220, "calls that take longer than expected are followed"


def share_unexplained(
    operator: Callable[[torch.Tensor], torch.Tensor], x: Callable[[], Any]
) -> float:
    """The share of honest outputs that no mixture of two sets explains, where some rows of one
    stale piece of the inputs are true."""
    rng = random.Random(3)
    count = 0
    for _ in range(400):
        true, other = x(), x()
        piece = draw_piece(true.nbytes, rng)
        stale, mixed = true.clone(), true.clone()
        rows = rng.randrange(piece.rows + 1)
        for values, some in (stale, piece.rows), (mixed, rows):
            there = piece.of(values.view(-1).view(torch.uint8))
            there[:some] = piece.of(other.view(-1).view(torch.uint8))[:some]
        out, right, old = map(operator, (mixed, true, stale))
        tolerance = Tolerance(atol=0, rtol=1e-3, rel_l2=1e-3)
        count += bool(errors_beyond_mixed_inputs(out, right, old, tolerance))
    return count / 400


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
def test_mixed_inputs_are_seldom_unexplained(
    operator: Callable[[torch.Tensor], torch.Tensor], x: Callable[[], Any]
) -> None:
    assert share_unexplained(operator, x) < 0.25
