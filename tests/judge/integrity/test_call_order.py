"""What is concluded from samples of the outputs of a round."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.arena import TensorSpec, arrange
from grader.judge.gpu.dma import MOST_PITCH_BYTES
from grader.judge.integrity.call_order import (
    SINGLES,
    Bools,
    CallOrderWatch,
    overlapped,
    rotated,
    words_needed,
)
from grader.judge.integrity.policy import CALL_ORDER as POLICY
from grader.judge.memory.shared_block import SharedBlock
from tests.judge.host_copies import Clock, HostCopyEngine, HostPairReader, host_watch

U, W = False, True  # a word that is untouched, or written


def samples(*rows: list[bool]) -> Bools:
    """Samples in time; a row has one word per call."""
    return np.array(rows, dtype=np.bool_)


COUNT = 6
ORDER = [3, 1, 4, 0, 5, 2]
IN_SEQUENCE = list(range(COUNT))

Step = Callable[[], None]


@pytest.fixture(params=[8, 0], ids=["outputs", "state"])
def block(request: pytest.FixtureRequest) -> Iterator[SharedBlock]:
    words = TensorSpec(0, "int64", (4096,), (1,))
    made = SharedBlock(arrange([[(False, words), (True, words)]] * COUNT), request.param, "cpu")
    yield made
    made.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples count however long they take, as they may on a busy machine."""
    policy = replace(POLICY, slow_us=1e9)
    monkeypatch.setattr("grader.judge.integrity.call_order.POLICY", policy)


def publish(block: SharedBlock, watch: CallOrderWatch, order: list[int]) -> None:
    """Publish new inputs for a round that is watched, with one early sample."""
    block.shadow.random_()
    watch.arm(order)
    block.prepare(order)
    watch.sample_early(lambda: True)
    block.publish(order)
    watch.begin()


def published(
    block: SharedBlock, order: list[int], reader: HostPairReader | None = None
) -> CallOrderWatch:
    """The watch of a round whose inputs have been published."""
    watch = host_watch(block, reader=reader)
    publish(block, watch, order)
    return watch


def outputs(block: SharedBlock) -> torch.Tensor:
    """What may be written: int64 [sets, words]."""
    tail: torch.Tensor = block.lent[block.head_bytes :]
    return tail.view(torch.int64).view(COUNT, -1)


def run(watch: CallOrderWatch, block: SharedBlock, steps: list[Step]) -> None:
    """A round in which every place is sampled after each step."""
    for step in steps:
        step()
        for _ in range(SINGLES):
            watch.sample(with_pairs=True)
        watch.sample(with_pairs=False)
    block.take_snapshot()


def write(block: SharedBlock, index: int, start: float, end: float) -> Step:
    """A step in which a share of a set's outputs is written."""

    def step() -> None:
        words = outputs(block)[index]
        words[int(start * len(words)) : int(end * len(words))].random_()

    return step


def sequential(block: SharedBlock, order: list[int]) -> list[Step]:
    return [write(block, i, part / 4, (part + 1) / 4) for i in order for part in range(4)]


def concurrent(block: SharedBlock, order: list[int]) -> list[Step]:
    return [write(block, i, part / 4, (part + 1) / 4) for part in range(4) for i in order]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("order", [ORDER, *(rotated(COUNT, first) for first in range(COUNT))])
def test_sequential_calls_show_no_overlap(block: SharedBlock, order: list[int]) -> None:
    for _ in range(5):
        watch = published(block, order)
        run(watch, block, sequential(block, order))
        assert not watch.wrote_early()
        assert not watch.ran_concurrently()
        assert watch.overlaps() == 0
        assert watch.samples == 4 * COUNT * (SINGLES + 1)
        assert watch.first_unfinished()[-1] == COUNT


@pytest.mark.parametrize("order", [ORDER, *(rotated(COUNT, first) for first in range(COUNT))])
def test_the_first_unfinished_call_is_a_position_in_the_round(
    block: SharedBlock, order: list[int]
) -> None:
    watch = published(block, order)
    watch.sample(with_pairs=False)
    for index in order:
        write(block, index, 0, 1)()
        watch.sample(with_pairs=False)
    block.take_snapshot()
    assert watch.first_unfinished() == list(range(COUNT + 1))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("order", [ORDER, IN_SEQUENCE])
def test_scratch_before_the_final_output_is_no_overlap(
    block: SharedBlock, order: list[int]
) -> None:
    watch = published(block, order)
    run(watch, block, [write(block, i, part / 2, 1) for i in order for part in (0, 1, 0)])
    assert not watch.ran_concurrently()
    assert watch.overlaps() == 0


def test_concurrent_calls_are_detected(block: SharedBlock) -> None:
    for order in (ORDER, IN_SEQUENCE):
        watch = published(block, order)
        run(watch, block, concurrent(block, order))
        assert watch.ran_concurrently()
    reverse = published(block, ORDER)
    run(reverse, block, sequential(block, ORDER[::-1]))
    assert reverse.ran_concurrently()


def overlapping(block: SharedBlock, at: int, first: int = 0, pairs: bool = True) -> CallOrderWatch:
    """A round of sequential calls that begins with set `first`, except that at sample `at`, one of
    those `with_pairs` where `pairs` holds, the second call has begun and the first not ended."""
    order = rotated(COUNT, first)
    watch = published(block, order)
    steps = sequential(block, order)
    steps[3:3] = [lambda: None] * (at - 3)
    steps[at], steps[at + 1] = steps[at + 1], steps[at]
    for number, step in enumerate(steps):
        step()
        watch.sample(with_pairs=pairs or number != at)
    block.take_snapshot()
    return watch


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("first", range(COUNT))
def test_calls_that_overlap_for_a_moment_show_in_boundary_pairs(
    block: SharedBlock, first: int
) -> None:
    for at in range(4, 10):
        watch = overlapping(block, at, first)
        is_read = first < COUNT - 1  # no boundary lies behind the last set
        assert watch.overlaps() == is_read
        assert not watch.ran_concurrently()
        without_pairs = overlapping(block, at, first, pairs=False)
        assert without_pairs.overlaps() == 0
        assert not without_pairs.ran_concurrently()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("copy", range(POLICY.pairs))
@pytest.mark.parametrize("first", range(COUNT))
def test_each_pair_of_a_sample_detects_an_overlap_while_it_is_read(
    block: SharedBlock, first: int, copy: int
) -> None:
    """One call after another overlaps the one before it, just while one copy is read."""
    reader, order = HostPairReader(POLICY.pairs, COUNT - 1), rotated(COUNT, first)
    watch = host_watch(block, reader=reader)
    for second in range(1, COUNT):
        publish(block, watch, order)
        for index in order[: second - 1]:
            write(block, index, 0, 1)()
        before, after = order[second - 1], order[second]
        write(block, before, 0, 0.5)()
        begin, end = write(block, after, 0, 0.5), write(block, before, 0.5, 1)
        moments = {(copy, 0): begin, (copy + 1, 0): end}

        def overlap(copy: int, pair: int, moments: dict[tuple[int, int], Step] = moments) -> None:
            moments.pop((copy, pair), lambda: None)()

        reader.before_pair = overlap
        watch.sample(with_pairs=True)
        for step in moments.values():
            step()
        for index in order[second:]:
            write(block, index, 0, 1)()
        watch.sample(with_pairs=True)
        block.take_snapshot()
        assert watch.overlaps() == (after != 0)
        assert not watch.ran_concurrently()


@pytest.mark.usefixtures("patient")
def test_every_sample_with_an_overlap_counts_once(block: SharedBlock) -> None:
    watch = published(block, IN_SEQUENCE)
    write(block, 0, 0, 1 - 1 / 4)()
    write(block, 1, 0, 1 / 4)()
    for number in range(3):
        watch.sample(with_pairs=number != 1)
    for i in range(COUNT):
        write(block, i, 3 / 4, 1)()
    watch.sample(with_pairs=True)
    block.take_snapshot()
    assert watch.overlaps() == 2


@pytest.mark.parametrize(("took_us", "counts"), [(150, True), (151, False)])
def test_the_pairs_of_a_slow_sample_do_not_count(
    block: SharedBlock, monkeypatch: pytest.MonkeyPatch, took_us: int, counts: bool
) -> None:
    clock = Clock(monkeypatch, "call_order")

    def later(copy: int, pair: int) -> None:
        clock.now_us += took_us if (copy, pair) == (0, 0) else 0

    reader = HostPairReader(POLICY.pairs, COUNT - 1)
    reader.before_pair = later
    watch = published(block, IN_SEQUENCE, reader)
    write(block, 0, 0, 3 / 4)()
    write(block, 1, 0, 1 / 4)()
    assert watch.sample(with_pairs=True) == 1, "though it is no evidence"
    for i in range(COUNT):
        write(block, i, 0, 1)()
    block.take_snapshot()
    assert watch.overlaps() == counts


@pytest.mark.usefixtures("patient")
def test_nothing_of_a_round_is_left_for_the_next(block: SharedBlock) -> None:
    reader = HostPairReader(POLICY.pairs, COUNT - 1)
    watch = published(block, IN_SEQUENCE, reader)
    run(watch, block, concurrent(block, IN_SEQUENCE))
    assert watch.ran_concurrently()
    assert watch.overlaps()
    outputs(block).random_()
    watch.sample_early(lambda: True)
    assert watch.wrote_early()
    places, order = reader.places, rotated(COUNT, 2)
    watch.arm(order)
    assert watch.samples == watch.overlaps() == 0
    assert not watch.ran_concurrently()
    assert not watch.wrote_early()
    publish(block, watch, order)
    assert reader.places != places
    run(watch, block, sequential(block, order))
    assert not watch.ran_concurrently()
    assert watch.overlaps() == 0
    assert watch.first_unfinished()[-1] == COUNT


@pytest.mark.usefixtures("patient")
def test_an_order_without_boundaries_is_sampled_without_pairs(block: SharedBlock) -> None:
    reader = HostPairReader(POLICY.pairs, COUNT - 1)
    watch = published(block, ORDER, reader)
    run(watch, block, concurrent(block, ORDER))
    assert reader.reads == 0
    assert watch.overlaps() == 0
    publish(block, watch, IN_SEQUENCE)
    watch.sample(with_pairs=True)
    assert reader.reads == 1
    watch.sample(with_pairs=False)
    assert reader.reads == 1


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("held", range(COUNT - 1))
@pytest.mark.parametrize("copy", range(POLICY.pairs))
def test_a_copy_that_stalls_between_its_words_is_one_overlap_at_most(
    block: SharedBlock, held: int, copy: int
) -> None:
    """Sequential calls run on while a copy of pairs is stalled."""
    reader = HostPairReader(POLICY.pairs, COUNT - 1)
    watch, overlaps = host_watch(block, reader=reader), []
    for first in range(COUNT):
        publish(block, watch, rotated(COUNT, first))
        calls = iter([write(block, i, 0, 1) for i in rotated(COUNT, first)])
        next(calls)()
        stalls = [list(itertools.islice(calls, 4))]

        def stall(now: int, pair: int, stalls: list[list[Step]] = stalls) -> None:
            for call in stalls.pop() if stalls and (now, pair) == (copy, held) else []:
                call()

        reader.before_pair = stall
        for _ in range(2):
            watch.sample(with_pairs=True)
        assert not stalls
        for call in calls:
            call()
        watch.sample(with_pairs=True)
        block.take_snapshot()
        assert not watch.ran_concurrently()
        overlaps.append(watch.overlaps())
    assert set(overlaps) <= {0, 1}
    assert (1 in overlaps) == (held > 0), "the copy did stall where a boundary is"


class StalledEngine(HostCopyEngine):
    """Does something in the midst of a copy."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.stalls: Iterator[Step] = iter(())

    def read(self, address: int, pitch_bytes: int, count: int, at: int) -> None:
        half = count // 2
        super().read(address, pitch_bytes, half, at)
        next(self.stalls, lambda: None)()
        super().read(address + half * pitch_bytes, pitch_bytes, count - half, at + half)


@pytest.mark.parametrize("order", [ORDER, *(rotated(COUNT, first) for first in range(COUNT))])
def test_a_single_sample_that_stalls_is_no_evidence(block: SharedBlock, order: list[int]) -> None:
    copies = StalledEngine(words_needed(block))
    watch = host_watch(block, copies)
    publish(block, watch, order)
    copies.stalls = iter([write(block, i, 0, 1) for i in order])
    for _ in range(COUNT + 1):
        watch.sample(with_pairs=False)
    block.take_snapshot()
    assert not watch.ran_concurrently()
    assert watch.first_unfinished()[-1] == COUNT


def test_a_round_without_samples_shows_nothing(block: SharedBlock) -> None:
    watch = published(block, IN_SEQUENCE)
    run(watch, block, [])
    assert watch.overlaps() == 0
    assert not watch.ran_concurrently()
    assert watch.first_unfinished() == []


@pytest.mark.parametrize("first", range(COUNT))
@pytest.mark.parametrize("with_pairs", [True, False])
def test_a_sample_gives_the_position_of_the_last_call_that_had_begun(
    block: SharedBlock, first: int, with_pairs: bool
) -> None:
    order = rotated(COUNT, first)
    watch = published(block, order)
    assert watch.sample(with_pairs) == -1
    for position, index in enumerate(order):
        write(block, index, 0, 1)()
        assert watch.sample(with_pairs) == position


def test_a_begin_shows_in_the_start_of_a_boundary_before_it_does_near_the_end(
    block: SharedBlock,
) -> None:
    watch = published(block, IN_SEQUENCE)
    write(block, 0, 0, 1)()
    write(block, 1, 0, 1 / 8)()
    assert watch.sample(with_pairs=False) == 0
    assert watch.sample(with_pairs=True) == 1


@pytest.mark.parametrize("words", [1, 64, 1000, 4096, 1 << 16])
@pytest.mark.parametrize("tensors", [1, 3])
def test_the_places_of_a_boundary_lie_in_outputs(words: int, tensors: int) -> None:
    slots = [TensorSpec(0, "int64", (words,), (1,)) for _ in range(tensors)]
    layout = arrange([[(False, slots[0]), (True, [*slots])]] * 3)
    block = SharedBlock(layout, 8, "cpu")
    first = layout.sets[0][1]
    assert isinstance(first, list)
    block.written = [(slot.offset - block.head_bytes, slot.nbytes) for slot in first]
    reader = HostPairReader(POLICY.pairs, 2)
    published(block, [0, 1, 2], reader)
    set_bytes = block.tail_bytes // 3
    assert len(reader.places) == (POLICY.pairs if words > 64 else 0)
    for address, step_bytes in reader.places:
        end = address - block.lent.data_ptr()
        start = end + step_bytes - set_bytes
        for place in (start, end):
            assert any(s.offset <= place < s.offset + s.nbytes for s in first)
        assert start < end
        assert set_bytes % step_bytes == 0
    block.close()


def test_the_pairs_of_a_sample_lie_at_several_boundaries(block: SharedBlock) -> None:
    reader = HostPairReader(POLICY.pairs, COUNT - 1)
    published(block, IN_SEQUENCE, reader)
    steps = {step_bytes for _, step_bytes in reader.places}
    assert len(steps) == len(set(reader.places)) == len(POLICY.boundary_parts) > 1


def test_places_are_secret(block: SharedBlock) -> None:
    reader = HostPairReader(POLICY.pairs, COUNT - 1)
    watch = published(block, IN_SEQUENCE, reader)
    found = set()
    for _ in range(10):
        watch.arm(IN_SEQUENCE)
        found.add(reader.places[0])
    assert len(found) > 5


def test_outputs_filled_before_the_round_hide_nothing(block: SharedBlock) -> None:
    """Words that are no longer blank look begun, so they have to be finished in order."""
    watch = host_watch(block)
    block.shadow.random_()
    watch.arm(ORDER)
    block.prepare(ORDER)
    outputs(block).fill_(7)  # by the runner, as soon as they are blank
    watch.sample_early(lambda: True)
    block.publish(ORDER)
    assert watch.wrote_early()
    outputs(block).fill_(9)  # again, now that the inputs are there
    run(watch, block, concurrent(block, ORDER))
    assert watch.ran_concurrently()


@pytest.mark.parametrize("index", ORDER)
def test_outputs_written_while_inputs_are_published_are_detected(
    block: SharedBlock, index: int
) -> None:
    watch = host_watch(block)
    for order in (ORDER, [i for i in ORDER if i != index]):
        block.shadow.random_()
        watch.arm(order)
        block.prepare(order)
        outputs(block)[index].random_()
        watch.sample_early(lambda: True)
        assert watch.wrote_early() == (index in order)


def test_outputs_are_untouched_before_and_after_inputs_are_published(block: SharedBlock) -> None:
    """State is blank until it is published; other outputs stay so."""
    watch = published(block, ORDER)
    assert not watch.wrote_early()
    watch.sample_early(lambda: True)
    assert not watch.wrote_early()
    outputs(block)[ORDER[-1]].random_()
    watch.sample_early(lambda: True)
    assert watch.wrote_early()


def test_a_late_early_sample_proves_nothing_and_a_round_with_only_those_is_blind(
    block: SharedBlock,
) -> None:
    watch = published(block, ORDER)
    assert not watch.was_blind(0)
    for _ in range(3):
        outputs(block).random_()
        watch.sample_early(lambda: False)
        assert not watch.wrote_early()
    assert not watch.was_blind(0), "one sample was early enough"
    watch.arm(ORDER)
    watch.sample_early(lambda: False)
    assert not watch.wrote_early()
    assert watch.was_blind(0)
    watch.arm(ORDER)
    assert not watch.was_blind(0), "none was asked for"


@pytest.mark.parametrize(
    ("watched_us", "most_samples", "round_us", "is_blind"),
    [
        (900, 100, 950, False),
        (720, 100, 950, False),
        (705, 100, 950, False),
        (704, 100, 950, True),
        (0, 100, 950, True),
        (0, 100, 90, False),
        (1000, 61, 5e6, True),
        (1000, 60, 5e6, False),
    ],
)
def test_a_round_that_was_hardly_sampled_is_blind(
    block: SharedBlock,
    monkeypatch: pytest.MonkeyPatch,
    watched_us: float,
    most_samples: int,
    round_us: float,
    is_blind: bool,
) -> None:
    """Unless as many samples were taken as can be kept."""
    policy = replace(POLICY, most_samples=most_samples)
    monkeypatch.setattr("grader.judge.integrity.call_order.POLICY", policy)
    clock = Clock(monkeypatch, "call_order")
    watch = published(block, IN_SEQUENCE)
    for _ in range(60 if watched_us else 0):
        clock.now_us += watched_us / 60
        watch.sample(with_pairs=True)
        watch.end_sample()
    assert watch.is_full == (most_samples == 60)
    assert watch.was_blind(round_us) is is_blind


def test_a_long_gap_between_two_samples_was_not_watched(
    block: SharedBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, "call_order")
    for gap_us, is_blind in ((151, True), (150, False)):
        watch = published(block, ORDER)
        for _ in range(10):
            clock.now_us += gap_us
            watch.sample(with_pairs=True)
            watch.end_sample()
        assert watch.was_blind(10 * gap_us) is is_blind


def test_sets_that_no_copy_reaches_are_not_watched(block: SharedBlock) -> None:
    assert CallOrderWatch.reaches(MOST_PITCH_BYTES - 1)
    assert not CallOrderWatch.reaches(MOST_PITCH_BYTES)
    assert CallOrderWatch.over(block) is None, "a CPU has no copy engine"


def test_no_sample_shows_nothing() -> None:
    nothing = np.empty((0, 3), dtype=np.bool_)
    assert not overlapped(nothing, nothing)


def is_detected(*rows: list[bool]) -> bool:
    """What is concluded of words that are final once they have changed."""
    return overlapped(samples(*rows), ~samples(*rows))


def test_sequential_calls_do_not_overlap() -> None:
    assert not is_detected([U, U, U], [W, U, U], [W, W, U], [W, W, W])


def test_a_word_of_a_running_call_may_be_written_at_its_end() -> None:
    assert not is_detected([W, U], [U, U], [W, U], [W, W], [W, W])


def test_one_sample_alone_proves_nothing() -> None:
    """Its words are of one place in every set."""
    assert not is_detected([U, W])


def test_a_later_call_that_began_first_is_detected() -> None:
    assert is_detected([W, W, U], [U, W, U])
    assert is_detected([U, U, W], [W, U, W])


def test_a_begin_is_remembered_over_all_samples() -> None:
    begun = samples([U, U, W], [U, U, U], [U, U, U])
    assert overlapped(begun, samples([U, U, U], [U, U, U], [W, U, U]))
    assert not overlapped(begun, samples([U, U, U], [U, U, U], [U, U, W]))


def test_words_that_never_change_prove_nothing() -> None:
    """Where state is updated in place, an earlier call may leave some of it as it was."""
    begun = samples([U, W, U], [U, W, W])
    assert overlapped(begun, ~begun)
    assert not overlapped(begun, samples([U, U, W], [U, U, U]))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_honest_rounds_never_overlap(places: list[int], data: st.DataObject) -> None:
    """Sequential calls, each writing its words at moments of its own."""
    calls, words = 4, 4
    moments = sorted(data.draw(st.lists(st.integers(0, 100), min_size=16, max_size=16)))
    at = [sorted(moments[i * words : (i + 1) * words]) for i in range(calls)]
    times = sorted(data.draw(st.lists(st.integers(0, 100), min_size=len(places))))
    begun = [[at[c][p] < t for c in range(calls)] for p, t in zip(places, times, strict=False)]
    # A word may be scratch until its call ends.
    unfinished = [[at[c][-1] >= t for c in range(calls)] for t in times[: len(places)]]
    assert not overlapped(samples(*begun), samples(*unfinished))
