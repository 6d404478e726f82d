"""The arithmetic of `benchmarks/lone_calls.py`."""

from __future__ import annotations

import pytest

from benchmarks.lone_calls import HEAD, Lone, lone_of, row
from grader.judge.rounds import Bracket


def lone(claim_us: float, outside_us: float) -> Bracket:
    return Bracket(1, claim_us, outside_us, publish_us=30.0)


IDLE = [lone(50, 200), lone(51, 211), lone(49, 259)]
"""Idle rounds that cost 150, 160 and 210 µs besides their calls."""


def test_what_an_idle_round_costs_in_the_middle_is_taken_off() -> None:
    found = lone_of(
        [lone(20, 180), lone(21, 190), lone(19, 183), lone(22, 170), lone(9, 188)], IDLE
    )
    assert found == Lone(call_us=23, quartiles_us=(20, 28), claim_us=20)


def test_quartiles_lie_between_rounds() -> None:
    found = lone_of([lone(20, 180), lone(20, 190)], IDLE)
    assert found.call_us == pytest.approx(25)
    assert found.quartiles_us == pytest.approx((22.5, 27.5))


def test_a_claim_has_no_part_in_a_time_from_outside() -> None:
    honest, forged = (lone_of([lone(claim_us, 190)] * 3, IDLE) for claim_us in (30, 1))
    assert honest.call_us == forged.call_us
    assert (honest.claim_us, forged.claim_us) == (30, 1)


def test_a_row_has_the_difference_from_ordinary_rounds() -> None:
    line = row("gemv_4k", 64, 9.876, "read", Lone(20.04, (17.5, 24.0), 19.0))
    assert line == "| gemv_4k | 64 | 9.88 | read | 20.0 | 17.5 to 24.0 | 19.0 | +10.2 |"
    assert len({part.count("|") for part in [line, *HEAD.splitlines()]}) == 1
