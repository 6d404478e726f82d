"""What the judge concludes from seeing outputs appear."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.judge.lookout import MOST_READS, Lookout, overlapped

U, W = False, True


def looks(*rows: list[bool]) -> torch.Tensor:
    """Looks in the order of time; a row has one word per call."""
    return torch.tensor(rows, dtype=torch.bool)


@pytest.mark.parametrize(
    ("reads", "round_us", "blind"),
    [(80, 900, False), (8, 900, True), (0, 900, True), (MOST_READS, 5e6, False)],
)
def test_a_round_that_could_hardly_be_watched_is_known(
    reads: int, round_us: float, blind: bool
) -> None:
    lookout = Lookout.__new__(Lookout)
    lookout._reads = reads
    assert lookout.was_blind(round_us) is blind


def test_no_look_says_nothing() -> None:
    assert not overlapped(torch.empty((0, 3), dtype=torch.bool))


def test_calls_in_turn_are_fine() -> None:
    assert not overlapped(looks([U, U, U], [W, U, U], [W, W, U], [W, W, W]))


def test_a_word_of_a_running_call_may_be_written_late() -> None:
    assert not overlapped(looks([W, U], [U, U], [W, U], [W, W], [W, W]))


def test_one_look_alone_proves_nothing() -> None:
    """Its words were read at about one time, and in no order that we know."""
    assert not overlapped(looks([U, W]))


def test_a_later_call_that_began_first_is_seen() -> None:
    assert overlapped(looks([W, W, U], [U, W, U]))
    assert overlapped(looks([U, U, W], [W, U, W]))


def test_words_that_never_change_tell_nothing() -> None:
    """Where state is updated in place, an earlier call may leave some of it as it was."""
    seen = looks([U, W, U], [U, W, W])
    assert overlapped(seen)
    assert not overlapped(seen, looks([U, W, W], [U, W, W]))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_honest_rounds_are_never_blamed(places: list[int], data: st.DataObject) -> None:
    """Calls run in turn, each writing its words at moments of its own: no look overlaps."""
    calls, words = 4, 4
    moments = sorted(data.draw(st.lists(st.integers(0, 100), min_size=16, max_size=16)))
    at = [sorted(moments[i * words : (i + 1) * words]) for i in range(calls)]
    times = sorted(data.draw(st.lists(st.integers(0, 100), min_size=len(places))))
    seen = [[at[c][p] < t for c in range(calls)] for p, t in zip(places, times, strict=False)]
    assert not overlapped(torch.tensor(seen, dtype=torch.bool))
