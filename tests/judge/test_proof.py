"""When rounds of proof come, and when they have told enough."""

from __future__ import annotations

from grader.judge.bench import Bench
from grader.judge.clock import PLANS, Sample, measure
from grader.judge.proof import MOST, MOST_HELD_UP, Proofs, Tally

PLAN = PLANS["cuda", "full"]


def sequence(proofs: Proofs, rounds: int, in_time: int = 5) -> str:
    """`r` for every round, and `p` for each of proof, which has so many late inputs in time."""
    done = ""
    for index in range(rounds):
        while proofs.due(index):
            done += "p"
            proofs.count += 1
            proofs.tally.late += 5
            proofs.tally.in_time += in_time
        done += "r"
    return done


def test_as_many_as_planned_come_by_lot_and_never_before_the_first_round() -> None:
    drawn = [
        sequence(Proofs(PLAN.proofs, PLAN.least_rounds, True), PLAN.least_rounds)
        for _ in range(200)
    ]
    assert all(one.count("p") == PLAN.proofs and one[0] == "r" for one in drawn)
    assert len(set(drawn)) == PLAN.least_rounds - 1, "anywhere but before the first"


def test_whoever_is_slow_to_settle_is_watched_until_the_end() -> None:
    tails = [
        sequence(Proofs(PLAN.proofs, PLAN.least_rounds, True), PLAN.most_rounds)[-20:]
        for _ in range(50)
    ]
    assert 3 < sum(one.count("p") for one in tails) / 50 < 6
    assert all("pp" not in one for one in tails)


def test_more_come_where_too_little_was_in_time_but_not_for_ever() -> None:
    found = sequence(Proofs(PLAN.proofs, PLAN.least_rounds, True), PLAN.least_rounds, in_time=0)
    assert found.count("p") == MOST
    found = sequence(Proofs(PLAN.proofs, PLAN.least_rounds, False), PLAN.least_rounds, in_time=0)
    assert found.count("p") == PLAN.proofs, "where nothing can come late, nothing is waited for"


def test_what_is_held_up_tells_nothing() -> None:
    assert not Tally(late=2, in_time=0).tells
    assert Tally(late=2, in_time=1).tells
    assert not Tally(late=0).tells
    assert Tally(late=0, unwatched=8).tells, "calls so long cannot be watched"
    assert not Tally(late=2, unwatched=8).tells
    assert not Tally(late=48, in_time=2).tells
    assert Tally(late=48, in_time=3).tells
    assert Tally(late=12, in_time=6, held_up=int(MOST_HELD_UP * 12)).tells
    assert not Tally(late=12, in_time=6, held_up=int(MOST_HELD_UP * 12) + 1).tells


def test_their_times_do_not_count() -> None:
    done = []

    class Scripted(Bench):
        def __init__(self) -> None:
            self.first = None
            self.proofs = Proofs(PLAN.proofs, PLAN.least_rounds, False)

        def round(self, index: int, order: list[int] | None = None) -> Sample:
            done.append("r")
            return Sample(100.0, 100.0)

        def prove(self) -> None:
            done.append("p")

    timing = measure(Scripted().next, PLAN, 8, True, False)
    assert timing.rounds == done.count("r")
    assert done.count("p") == PLAN.proofs
