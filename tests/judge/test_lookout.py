"""What the judge concludes from seeing outputs appear."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.arena import Slot, arrange
from grader.judge.block import Block
from grader.judge.lookout import BEFORE, CLOSING, MOST_READS, PLACES, Lookout, overlapped

U, W = False, True


def looks(*rows: list[bool]) -> torch.Tensor:
    """Looks in the order of time; a row has one word per call."""
    return torch.tensor(rows, dtype=torch.bool)


class CpuLookout(Lookout):
    """Over a block in host memory, whose words it reads itself."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._set_bytes = block.tail_bytes // block.count
        self._outputs = [(block.head_bytes + at, -(-nbytes // 8)) for at, nbytes in block.written]
        self._seen = torch.zeros((MOST_READS + 2 * BEFORE, block.count), dtype=torch.int64)

    def _read(self, places: list[int], row: int) -> None:
        self._seen[row : row + len(places)] = self._words(self._block.lent, 0, places)


COUNT = 6
ORDER = [3, 1, 4, 0, 5, 2]


@pytest.fixture(params=[8, 0], ids=["outputs", "state"])
def block(request: pytest.FixtureRequest) -> Iterator[Block]:
    words = Slot(0, "int64", (4096,), (1,))
    made = Block(arrange([[(False, words), (True, words)]] * COUNT), request.param, "cpu")
    made.keep_probing = made.probe  # type: ignore[method-assign]
    yield made
    made.close()


def published(block: Block, order: list[int]) -> CpuLookout:
    """A lookout of a round whose inputs are there; it has looked before."""
    lookout = CpuLookout(block)
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


def watch(lookout: CpuLookout, steps: list[Callable[[], None]]) -> None:
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


def test_calls_in_turn_are_seen_to_be(block: Block) -> None:
    for _ in range(5):
        lookout = published(block, ORDER)
        watch(lookout, in_turn(block, ORDER))
        assert not lookout.has_begun(ORDER)
        assert not lookout.side_by_side(ORDER)


def test_an_output_that_is_scratch_before_it_is_final_is_no_overlap(block: Block) -> None:
    lookout = published(block, ORDER)
    twice = [write(block, i, part / 2, 1) for i in ORDER for part in (0, 1, 0)]
    watch(lookout, twice)
    assert not lookout.side_by_side(ORDER)


def test_calls_side_by_side_are_seen(block: Block) -> None:
    lookout = published(block, ORDER)
    watch(lookout, beside(block, ORDER))
    assert lookout.side_by_side(ORDER)
    turned = published(block, ORDER)
    watch(turned, in_turn(block, ORDER[::-1]))
    assert turned.side_by_side(ORDER)


def test_whoever_fills_the_outputs_before_hides_nothing(block: Block) -> None:
    """Words that are no longer blank look begun; so they have to be finished, in their order."""
    lookout = CpuLookout(block)
    block.image.random_()
    block.ready(ORDER)
    outputs(block).fill_(7)  # by the runner, as soon as they are blank
    lookout.aim(ORDER)
    lookout.look(lambda: True)
    block.publish(ORDER)
    assert lookout.has_begun(ORDER)
    outputs(block).fill_(9)  # again, now that the inputs are there
    watch(lookout, beside(block, ORDER))
    assert lookout.side_by_side(ORDER)


def test_outputs_written_while_inputs_are_published_are_seen(block: Block) -> None:
    lookout = CpuLookout(block)
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
    lookout._watched_us, lookout._reads = watched_us, reads
    assert lookout.was_blind(round_us) is blind


def test_a_long_gap_between_two_reads_is_not_watched(block: Block) -> None:
    lookout = published(block, ORDER)
    watch(lookout, [lambda: time.sleep(0.01)] * 5)
    assert lookout.was_blind(50_000)


def test_no_look_says_nothing() -> None:
    nothing = torch.empty((0, 3), dtype=torch.bool)
    assert not overlapped(nothing, nothing)


def seen(*rows: list[bool]) -> bool:
    """What is concluded of words that are final once they have changed."""
    return overlapped(looks(*rows), ~looks(*rows))


def test_calls_in_turn_are_fine() -> None:
    assert not seen([U, U, U], [W, U, U], [W, W, U], [W, W, W])


def test_a_word_of_a_running_call_may_be_written_late() -> None:
    assert not seen([W, U], [U, U], [W, U], [W, W], [W, W])


def test_one_look_alone_proves_nothing() -> None:
    """Its words were read at about one time, and in no order that we know."""
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
    assert not overlapped(torch.tensor(begun), torch.tensor(unfinished))
