"""What the judge concludes from seeing outputs appear."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.arena import TensorSpec, arrange
from grader.judge.benchmark import Bench
from grader.judge.integrity.call_order import (
    CLOSING,
    MOST_READS,
    PLACES,
    SLOWEST_READ_US,
    Bools,
    Lookout,
    _apart,
    overlapped,
    turned,
)
from grader.judge.memory.shared_block import Block
from grader.judge.verdict import SubmissionFault
from grader.report import Rule
from tests.judge.host_pairs import MemoryLookout

U, W = False, True


def looks(*rows: list[bool]) -> Bools:
    """Looks in the order of time; a row has one word per call."""
    return np.array(rows, dtype=np.bool_)


COUNT = 6
ORDER = [3, 1, 4, 0, 5, 2]


@pytest.fixture(params=[8, 0], ids=["outputs", "state"])
def block(request: pytest.FixtureRequest) -> Iterator[Block]:
    words = TensorSpec(0, "int64", (4096,), (1,))
    made = Block(arrange([[(False, words), (True, words)]] * COUNT), request.param, "cpu")
    made.keep_probing = made.probe  # type: ignore[method-assign]
    yield made
    made.close()


def published(block: Block, order: list[int]) -> MemoryLookout:
    """A lookout of a round whose inputs are there; it has looked before."""
    lookout = MemoryLookout(block)
    block.image.random_()
    block.ready(order)
    lookout.aim(order)
    lookout.look(lambda: True)
    block.publish(order)
    return lookout


def outputs(block: Block) -> torch.Tensor:
    """What may be written: int64 [sets, words]."""
    tail: torch.Tensor = block.lent[block.head_bytes :]
    return tail.view(torch.int64).view(COUNT, -1)


def watch(lookout: MemoryLookout, steps: list[Callable[[], None]]) -> None:
    """A round in which all places are read after each step."""
    left = [step for step in steps for _ in range(PLACES)]

    def going_on() -> bool:
        if not left:
            return False
        if len(left) % PLACES == 0:
            left[0]()
        left.pop(0)
        return True

    lookout.watch(going_on)
    lookout._block.probe()
    lookout._block.collect()


def write(block: Block, index: int, start: float, end: float) -> Callable[[], None]:
    """A step in which a share of a set's outputs is written."""

    def step() -> None:
        words = outputs(block)[index]
        words[int(start * len(words)) : int(end * len(words))].random_()

    return step


def in_turn(block: Block, order: list[int]) -> list[Callable[[], None]]:
    return [write(block, i, part / 4, (part + 1) / 4) for i in order for part in range(4)]


def beside(block: Block, order: list[int]) -> list[Callable[[], None]]:
    return [write(block, i, part / 4, (part + 1) / 4) for part in range(4) for i in order]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Glances that take long count, as they may here."""
    monkeypatch.setattr("grader.judge.integrity.call_order.SLOWEST_READ_US", 1e9)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("order", [ORDER, *(turned(COUNT, first) for first in range(COUNT))])
def test_calls_in_turn_are_seen_to_be(block: Block, order: list[int]) -> None:
    for _ in range(5):
        lookout = published(block, order)
        lookout._glances.allowed = 1 << 30
        watch(lookout, in_turn(block, order))
        assert not lookout.has_begun(order)
        assert not lookout.side_by_side()
        assert not lookout.meetings()
        assert lookout.first_unfinished()[-1] == COUNT


@pytest.mark.parametrize("order", [ORDER, sorted(ORDER)])
def test_an_output_that_is_scratch_before_it_is_final_is_no_overlap(
    block: Block, order: list[int]
) -> None:
    lookout = published(block, order)
    twice = [write(block, i, part / 2, 1) for i in order for part in (0, 1, 0)]
    watch(lookout, twice)
    assert not lookout.side_by_side()
    assert not lookout.meetings()


def test_calls_side_by_side_are_seen(block: Block) -> None:
    for order in (ORDER, sorted(ORDER)):
        lookout = published(block, order)
        watch(lookout, beside(block, order))
        assert lookout.side_by_side()
    other = published(block, ORDER)
    watch(other, in_turn(block, ORDER[::-1]))
    assert other.side_by_side()


def meeting(
    block: Block, at: int, first: int = 0, took_us: float = 15, glances: int = 0
) -> MemoryLookout:
    """A round that begins with this set, in turn but for the moment of look number `at`: then the
    second has begun, and the first not ended. Each look takes so long; beside the first so many of
    them there are glances."""
    lookout = published(block, turned(COUNT, first))
    lookout.took_us, lookout._glances.allowed = took_us, glances
    steps = in_turn(block, turned(COUNT, first))
    steps[3:3] = [lambda: None] * (at - 3)
    steps[at], steps[at + 1] = steps[at + 1], steps[at]
    left = iter(steps)

    def going_on() -> bool:
        step = next(left, None)
        if step is not None:
            step()
        return step is not None

    lookout.watch(going_on)
    block.probe()
    block.collect()
    return lookout


@pytest.mark.parametrize("first", range(COUNT))
def test_calls_that_meet_for_a_moment_are_seen_at_a_seam(block: Block, first: int) -> None:
    for at in range(4, 10):
        lookout = meeting(block, at, first)
        is_read = first < COUNT - 1  # behind the last set there is none
        assert lookout.meetings() == (at % 2 == 0 and is_read)
        assert not lookout.side_by_side()
        assert lookout._turns[:4] == [0, 1, 6, 2]  # every other look is at a seam


def test_a_look_that_takes_long_tells_of_no_meeting(block: Block) -> None:
    assert meeting(block, 6, took_us=SLOWEST_READ_US).meetings() == 1
    assert meeting(block, 6, took_us=SLOWEST_READ_US + 1).meetings() == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("first", range(COUNT))
def test_calls_that_meet_between_looks_at_seams_are_seen_by_glances(
    block: Block, first: int
) -> None:
    assert meeting(block, 5, first).meetings() == 0
    assert meeting(block, 5, first, glances=5).meetings() == 0
    is_read = first < COUNT - 1
    for glances in (6, 7, 100):
        lookout = meeting(block, 5, first, glances=glances)
        assert lookout.meetings() == is_read
        assert not lookout.side_by_side()


@pytest.mark.usefixtures("patient")
def test_what_is_under_way_at_the_same_time_counts_once(block: Block) -> None:
    """A look at a seam, and the burst beside it."""
    lookout = meeting(block, 6, glances=100)
    assert lookout.meetings() == 1
    assert meeting(block, 6).meetings() == 1
    spans = [(burst.asked, burst.over) for burst in lookout._bursts]
    assert spans[:3] == [(0, 2), (2, 3), (3, 5)]  # each until the next look; at seams two rows


def test_only_what_is_apart_is_counted_apart() -> None:
    assert _apart([]) == 0
    assert _apart([(4, 5), (0, 1)]) == 2
    assert _apart([(1, 4), (4, 5), (5, 8)]) == 1
    assert _apart([(1, 4), (5, 8)]) == 2
    assert _apart([(1, 9), (2, 3), (4, 5), (10, 11)]) == 2


@pytest.mark.usefixtures("patient")
def test_bursts_one_after_the_other_count_each(block: Block) -> None:
    """Of three looks while calls meet, two are at seams, and each has a burst beside it."""
    lookout = published(block, turned(COUNT, 0))
    lookout._glances.allowed = 100
    write(block, 0, 0, 1 - 1 / 4)()
    write(block, 1, 0, 1 / 4)()
    lookout.watch(iter([True, True, True, False]).__next__)
    for i in range(COUNT):
        write(block, i, 3 / 4, 1)()
    block.probe()
    block.collect()
    assert [burst.asked for burst in lookout._bursts] == [0, 2, 3]
    assert lookout.meetings() == 3  # the looks at 0 and 3 with the bursts that were begun then
    lookout._bursts = lookout._bursts[:2]
    assert lookout.meetings() == 3  # a burst that was over is apart from the look after it
    lookout._held_up = {0, 3}
    assert lookout.meetings() == 2


@pytest.mark.parametrize(("took_us", "counts"), [(149, True), (151, False)])
def test_a_burst_that_takes_long_is_lost(
    block: Block, monkeypatch: pytest.MonkeyPatch, took_us: int, counts: bool
) -> None:
    now_ns = 0
    monkeypatch.setattr(
        "grader.judge.integrity.call_order.time", SimpleNamespace(perf_counter_ns=lambda: now_ns)
    )
    lookout = published(block, list(range(COUNT)))
    glances = lookout._glances
    glances.allowed, are_there = 1, glances.are_there

    def later() -> bool:
        nonlocal now_ns
        now_ns += took_us * 1000
        return bool(are_there())

    glances.are_there = later
    lookout.watch(iter([True, True, False]).__next__)
    assert (lookout.kept_bursts, lookout.lost_bursts) == (counts, not counts)
    assert lookout._lost_us == (0 if counts else took_us)
    lookout._watched_us = 10 * took_us
    assert lookout.was_blind(1.9 * took_us) is not counts
    assert not lookout.was_blind(2.1 * took_us)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("polls", [1, 2, 3])
def test_a_burst_is_kept_when_it_is_there_and_none_is_asked_for_before(
    block: Block, polls: int
) -> None:
    lookout = published(block, list(range(COUNT)))
    lookout._glances.allowed, lookout._glances.polls = 1 << 30, polls
    watch(lookout, in_turn(block, list(range(COUNT))))
    assert lookout._glances.asked > 2
    assert lookout.kept_bursts == lookout._glances.asked
    assert not lookout.meetings()
    short = published(block, list(range(COUNT)))
    short._glances.allowed, short._glances.polls = 1, polls
    short.watch(iter([True, False]).__next__)
    assert short.kept_bursts == 1  # waited for when the round is over


@pytest.mark.usefixtures("patient")
def test_nothing_of_a_round_is_left_for_the_next(block: Block) -> None:
    lookout = meeting(block, 5, glances=100)
    assert lookout.meetings() == 1
    order = turned(COUNT, 2)
    block.image.random_()
    block.ready(order)
    lookout.aim(order)
    base = block.lent.data_ptr()
    for turn, words in zip(lookout._glance_turns(), lookout._glances._aimed, strict=True):
        assert words.ctypes.data == base + lookout._places[turn]
    assert len(set(lookout._glance_turns())) == len(lookout._seams) > 1
    block.publish(order)
    watch(lookout, in_turn(block, order))
    assert not lookout.meetings()
    assert lookout.kept_bursts > 2


@pytest.mark.usefixtures("patient")
def test_there_are_no_glances_beside_probes(block: Block) -> None:
    in_order = list(range(COUNT))
    lookout = published(block, in_order)
    lookout._glances.allowed = 1 << 30
    steps = in_turn(block, in_order)
    closing = 4 * (COUNT - CLOSING) + 1  # so many parts are written when the third last has begun
    asked: list[int] = []
    read, written = lookout._glances.read, 0

    def noted() -> None:
        asked.append(written)
        read()

    lookout._glances.read = noted

    def going_on() -> bool:
        nonlocal written
        if written < len(steps):
            steps[written]()
        written += 1
        return written <= len(steps) + 3

    lookout.watch(going_on)
    assert asked[:3] == [1, 2, 3]
    assert max(asked) <= closing + PLACES


@pytest.mark.usefixtures("patient")
def test_there_are_no_glances_behind_a_late_write(block: Block) -> None:
    lookout = published(block, list(range(COUNT)))
    lookout._glances.allowed = 1 << 30
    late: Any = SimpleNamespace(
        begin=lambda: None,
        write_due=lambda peek, row: row in (0, 3),
        saw=lambda furthest, is_closing: None,
        write_rest=lambda peek, is_over: None,
    )
    lookout.watch(iter([True] * 4 + [False]).__next__, late)
    assert lookout._turns[:6] == [0, 1, PLACES - 3, 2, 3, PLACES - 2]
    assert [burst.asked for burst in lookout._bursts] == [2, 5]


@pytest.mark.usefixtures("patient")
def test_of_a_round_no_more_bursts_are_kept_than_there_is_room_for(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.judge.integrity.call_order.MOST_BURSTS", 3)
    assert meeting(block, 8, glances=100).kept_bursts == 3


def test_one_meeting_may_be_chance_and_two_are_a_broken_rule(block: Block) -> None:
    bench: Any = Bench.__new__(Bench)
    bench.grading, bench.case = SimpleNamespace(meetings=0), SimpleNamespace(name="tiny")
    bench.meetings = 0
    bench.grading.bursts = bench.grading.lost_bursts = 0
    in_order = list(range(COUNT))
    bench._expect_order(meeting(block, 5), in_order)
    assert bench.meetings == 0
    bench._expect_order(meeting(block, 6), in_order)
    assert bench.meetings == 1
    with pytest.raises(SubmissionFault) as stop:
        bench._expect_order(meeting(block, 8), in_order)
    assert stop.value.fault.rule is Rule.WORK_OUTSIDE_CALL


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("held", range(COUNT - 1))
@pytest.mark.parametrize("first", range(COUNT))
def test_what_is_held_up_in_its_midst_convicts_nobody(block: Block, first: int, held: int) -> None:
    """Calls run in turn, and some of them while a look and the burst beside it are under way."""
    lookout = published(block, turned(COUNT, first))
    calls = iter([write(block, i, 0, 1) for i in turned(COUNT, first)])
    next(calls)()
    pairs, glances = lookout._pairs, lookout._glances
    glances.allowed = 1 << 30
    read_all, before = glances.read, list[Any]()
    is_held = False

    def half(aimed: Any) -> None:
        nonlocal is_held
        pairs.read_some(aimed[: held + 1], 0)
        if not is_held:
            is_held = True
            before.append(np.stack([words[: held + 1] for words in glances._aimed]))
            for _ in range(4):
                next(calls, lambda: None)()
        pairs.read_some(aimed[held + 1 :], held + 1)

    def half_of_all() -> None:
        read_all()
        if before:
            glances.found[:, : held + 1] = before.pop()

    pairs.read, glances.read = half, half_of_all
    lookout.watch(iter([True, True, False]).__next__)
    for call in calls:
        call()
    block.probe()
    block.collect()
    assert lookout.kept_bursts >= 1
    assert not lookout.side_by_side()
    assert lookout.meetings() <= 1


def test_a_round_that_nobody_looked_at_has_no_meetings(block: Block) -> None:
    lookout = published(block, list(range(COUNT)))
    watch(lookout, [])
    assert not lookout.meetings()
    assert not lookout.side_by_side()


def test_a_look_at_a_seam_reads_ends_and_the_starts_behind_them(block: Block) -> None:
    in_order = list(range(COUNT))
    lookout = published(block, in_order)
    watch(lookout, in_turn(block, in_order)[: 4 * (COUNT - 2)])
    for turn in (0, 2, 4):
        lookout._read_seam(turn, 0)
        ends, starts = lookout._words(block.lent, 0, lookout._places[turn : turn + 2])
        assert lookout._rows[0, :-1].tolist() == ends[:-1].tolist()
        assert lookout._rows[1, 1:].tolist() == starts[1:].tolist()
        assert lookout._rows[0, -1] == lookout._blank[turn, -1]
        assert lookout._rows[1, 0] == lookout._blank[turn + 1, 0]
        assert lookout._furthest(1, turn + 1) == COUNT - 3


@pytest.mark.parametrize("words", [1, 64, 1000, 4096, 1 << 16])
@pytest.mark.parametrize("tensors", [1, 3])
def test_the_places_of_a_seam_lie_in_outputs(words: int, tensors: int) -> None:
    slots = [TensorSpec(0, "int64", (words,), (1,)) for _ in range(tensors)]
    layout = arrange([[(False, slots[0]), (True, [*slots])]] * 3)
    block = Block(layout, 8, "cpu")
    first = layout.sets[0][1]
    assert isinstance(first, list)
    block.written = [(slot.offset - block.head_bytes, slot.nbytes) for slot in first]
    lookout = published(block, [0, 1, 2])
    assert (len(lookout._places) > 3) is (words > 64)
    for end, start in zip(*[iter(lookout._places[: lookout._singles])] * 2, strict=True):
        for place in (start, end):
            assert any(s.offset <= place < s.offset + s.nbytes for s in first)
        assert start < end
        assert lookout._set_bytes % (start + lookout._set_bytes - end) == 0
    block.close()


def test_whoever_fills_the_outputs_before_hides_nothing(block: Block) -> None:
    """Words that are no longer blank look begun; so they have to be finished, in their order."""
    lookout = MemoryLookout(block)
    block.image.random_()
    block.ready(ORDER)
    outputs(block).fill_(7)  # by the runner, as soon as they are blank
    lookout.aim(ORDER)
    lookout.look(lambda: True)
    block.publish(ORDER)
    assert lookout.has_begun(ORDER)
    outputs(block).fill_(9)  # again, now that the inputs are there
    watch(lookout, beside(block, ORDER))
    assert lookout.side_by_side()


def test_outputs_written_while_inputs_are_published_are_seen(block: Block) -> None:
    lookout = MemoryLookout(block)
    block.image.random_()
    block.ready(ORDER)
    lookout.aim(ORDER)
    outputs(block)[ORDER[0]].random_()
    lookout.look(lambda: True)
    assert lookout.has_begun(ORDER)
    assert not lookout.has_begun(ORDER[1:])


def test_what_is_read_too_late_tells_nothing_and_reading_only_too_late_is_blind(
    block: Block,
) -> None:
    lookout = published(block, ORDER)
    outputs(block).random_()
    lookout.look(lambda: False)
    assert not lookout.has_begun(ORDER)
    lookout.aim(ORDER)
    lookout.look(lambda: False)
    assert not lookout.has_begun(ORDER)
    assert lookout.was_blind(0)


def test_the_block_is_probed_when_the_round_comes_to_its_end(block: Block) -> None:
    lookout = published(block, ORDER)
    done: list[int] = []
    probed: list[int] = []
    block.keep_probing = lambda: probed.append(len(done))  # type: ignore[method-assign]

    def noted(index: int) -> Callable[[], None]:
        def step() -> None:
            write(block, index, 0, 1)()
            done.append(index)

        return step

    watch(lookout, [noted(index) for index in ORDER])
    assert min(probed) == COUNT - CLOSING + 1
    assert max(probed) == COUNT


@pytest.mark.parametrize(
    ("watched_us", "reads", "round_us", "blind"),
    [
        (900, 60, 950, False),
        (720, 60, 950, False),
        (700, 60, 950, True),
        (0, 0, 950, True),
        (0, 0, 90, False),
        (1e5, MOST_READS, 5e6, False),
    ],
)
def test_a_round_that_could_hardly_be_watched_is_known(
    watched_us: float, reads: int, round_us: float, blind: bool
) -> None:
    lookout = Lookout.__new__(Lookout)
    lookout._looks, lookout._looked = 0, None
    lookout._watched_us, lookout._turns = watched_us, [0] * reads
    lookout._lost_us = 0.0
    assert lookout.was_blind(round_us) is blind


@pytest.mark.parametrize(("lost_us", "blind"), [(0, False), (475, False), (476, True)])
def test_a_round_that_could_hardly_be_glanced_at_was_not_watched(lost_us: int, blind: bool) -> None:
    lookout = Lookout.__new__(Lookout)
    lookout._looks, lookout._looked = 0, None
    lookout._watched_us, lookout._turns = 950, [0] * 60
    lookout._lost_us = lost_us
    assert lookout.was_blind(950) is blind


def test_a_long_gap_between_two_reads_is_not_watched(block: Block) -> None:
    lookout = published(block, ORDER)
    watch(lookout, [lambda: time.sleep(0.01)] * 5)
    assert lookout.was_blind(50_000)


def test_no_look_says_nothing() -> None:
    nothing = np.empty((0, 3), dtype=np.bool_)
    assert not overlapped(nothing, nothing)


def seen(*rows: list[bool]) -> bool:
    """What is concluded of words that are final once they have changed."""
    return overlapped(looks(*rows), ~looks(*rows))


def test_calls_in_turn_are_fine() -> None:
    assert not seen([U, U, U], [W, U, U], [W, W, U], [W, W, W])


def test_a_word_of_a_running_call_may_be_written_late() -> None:
    assert not seen([W, U], [U, U], [W, U], [W, W], [W, W])


def test_one_look_alone_proves_nothing() -> None:
    """Its words are of one place in every set."""
    assert not seen([U, W])


def test_a_later_call_that_began_first_is_seen() -> None:
    assert seen([W, W, U], [U, W, U])
    assert seen([U, U, W], [W, U, W])


def test_words_that_never_change_tell_nothing() -> None:
    """Where state is updated in place, an earlier call may leave some of it as it was."""
    begun = looks([U, W, U], [U, W, W])
    assert overlapped(begun, ~begun)
    assert not overlapped(begun, looks([U, U, W], [U, U, U]))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_honest_rounds_are_never_blamed(places: list[int], data: st.DataObject) -> None:
    """Calls run in turn, each writing its words at moments of its own: no look overlaps."""
    calls, words = 4, 4
    moments = sorted(data.draw(st.lists(st.integers(0, 100), min_size=16, max_size=16)))
    at = [sorted(moments[i * words : (i + 1) * words]) for i in range(calls)]
    times = sorted(data.draw(st.lists(st.integers(0, 100), min_size=len(places))))
    begun = [[at[c][p] < t for c in range(calls)] for p, t in zip(places, times, strict=False)]
    # A word may be scratch until its call ends.
    unfinished = [[at[c][-1] >= t for c in range(calls)] for t in times[: len(places)]]
    assert not overlapped(looks(*begun), looks(*unfinished))
