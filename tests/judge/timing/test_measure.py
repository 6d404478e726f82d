"""From rounds to one time: when a measurement stops, and reported against measured times."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.judge.timing.measure import Sample, Timing, limit_us, measure
from grader.judge.timing.plan import PLANS, POLICY, Plan
from grader.report import Rule, Verdict
from grader.stats import estimate

PLAN = Plan(
    most_calls=64,
    least_rounds=6,
    most_rounds=40,
    budget_s=3.0,
    relative=0.002,
    settled=0.005,
    most_discarded=10,
)
CALLS = 50
ROOM_US = POLICY.limit_us - POLICY.slack_us / CALLS
"""By how much a short call of such a round may be measured longer than it is reported."""

us = st.floats(0, 1e7)


def rounds_of(*samples: Sample) -> Callable[[int], Sample]:
    """Rounds with these samples, and then more like the last of them."""
    endless = itertools.chain(samples, itertools.repeat(samples[-1]))
    return lambda _: next(endless)


def honest(reported_us: float = 50.0, discard: str | None = None) -> Sample:
    return Sample(reported_us, reported_us, discard)


def timed(*samples: Sample, ranks: bool = True, **changes: Any) -> Timing:
    return measure(rounds_of(*samples), replace(PLAN, **changes), CALLS, True, ranks)


# --- when a measurement stops


def test_it_stops_as_soon_as_the_time_is_known() -> None:
    timing = timed(honest())
    assert (timing.rounds, timing.converged, timing.discarded) == (PLAN.least_rounds, True, {})
    assert (timing.time_us, timing.ci_us, timing.external_us) == (50, (50, 50), 50)
    assert (timing.calls_per_round, timing.graph, timing.fault) == (CALLS, True, None)


def test_the_time_is_the_middle_reported_one_with_its_interval() -> None:
    reports = [50.0, 50.01, 49.99, 50.02, 49.98, 50.0]
    timing = timed(*map(honest, reports))
    assert timing.rounds == len(reports)
    assert (timing.time_us, timing.ci_us) == estimate(reports)


def test_every_round_has_its_own_number() -> None:
    """Inputs are drawn by that number: those of a discarded round must not be used again."""
    asked: list[int] = []

    def one_round(number: int) -> Sample:
        asked.append(number)
        return honest(discard="too hot" if len(asked) % 2 else None)

    measure(one_round, PLAN, CALLS, False, False)
    assert asked == list(range(len(asked)))
    assert len(asked) == 2 * PLAN.least_rounds


def test_rounds_of_a_throttled_chip_are_left_out_and_counted() -> None:
    hot, slow = honest(80, "thermal limit"), honest(90, "power brake")
    timing = timed(hot, honest(), slow, hot, honest())
    assert timing.discarded == {"thermal limit": 2, "power brake": 1}
    assert (timing.time_us, timing.rounds, timing.converged) == (50, PLAN.least_rounds, True)


def test_rounds_beyond_the_most_discarded_count_and_nothing_converges() -> None:
    timing = timed(honest(80, "thermal limit"))
    assert timing.discarded == {"thermal limit": PLAN.most_discarded}
    assert timing.rounds == PLAN.least_rounds
    assert timing.time_us == 80
    assert not timing.converged


def test_rounds_that_the_judge_could_not_watch_prove_no_forgery() -> None:
    held_up = Sample(50.0, 90.0, "the judge could not watch")
    seen = Sample(50.0, 90.0)
    enough = [seen] * PLAN.least_rounds
    assert timed(held_up).fault is None
    assert timed(held_up, *enough[1:], held_up).fault is None
    assert timed(held_up, *enough).fault is not None
    timing = timed(held_up)
    assert timing.time_us == pytest.approx(90 - limit_us(90, CALLS))
    assert not timing.converged


def test_one_round_beyond_the_most_discarded_is_enough() -> None:
    timing = timed(honest(50, "power brake"), honest(), most_discarded=0)
    assert (timing.discarded, timing.converged) == ({}, False)


def scattered(share: float) -> Iterator[Sample]:
    """Rounds whose times lie evenly within ± this share of 50 µs."""
    return (
        honest(50 * (1 + share * step / 3)) for step in itertools.cycle((0, 3, -2, 1, -3, 2, -1))
    )


def test_a_time_that_is_known_well_enough_after_the_most_rounds_has_converged() -> None:
    samples = scattered(0.015)
    timing = measure(lambda _: next(samples), PLAN, CALLS, True, False)
    assert (timing.rounds, timing.converged) == (PLAN.most_rounds, True)


def test_rounds_go_on_until_most_are_measured_as_short_as_reported() -> None:
    unlucky = Sample(50.0, 50.0 + ROOM_US + 2)
    timing = timed(*[unlucky] * 9, honest())
    assert (timing.rounds, timing.time_us) == (19, 50)
    assert timed(unlucky, unlucky, honest()).rounds == PLAN.least_rounds


def test_bad_luck_that_lasts_counts_as_time() -> None:
    unlucky = Sample(50.0, 50.0 + ROOM_US + 2)
    timing = timed(*[unlucky] * PLAN.most_rounds)
    assert timing.rounds == PLAN.most_rounds
    assert timing.fault is None
    assert timing.time_us == pytest.approx(52, rel=0.01)


def unsettled() -> Iterator[Sample]:
    return scattered(0.1)


def test_unsettled_times_end_at_the_most_rounds() -> None:
    samples = unsettled()
    timing = measure(lambda _: next(samples), PLAN, CALLS, True, False)
    assert (timing.rounds, timing.converged) == (PLAN.most_rounds, False)


def test_unsettled_times_end_with_the_budget() -> None:
    samples = unsettled()

    def slow(_: int) -> Sample:
        time.sleep(0.02)
        return next(samples)

    start_s = time.monotonic()
    timing = measure(slow, replace(PLAN, budget_s=0.2), CALLS, True, False)
    assert time.monotonic() - start_s < 2
    assert PLAN.least_rounds <= timing.rounds < PLAN.most_rounds
    assert not timing.converged


def test_a_spent_budget_still_grants_the_least_rounds() -> None:
    samples = unsettled()
    plan = replace(PLAN, budget_s=0, overtime_s=0)
    timing = measure(lambda _: next(samples), plan, CALLS, True, False)
    assert timing.rounds == plan.least_rounds


def test_times_that_have_not_settled_within_the_budget_get_overtime() -> None:
    plan = replace(PLAN, budget_s=0, overtime_s=60)
    samples = unsettled()
    assert measure(lambda _: next(samples), plan, CALLS, True, False).rounds == plan.most_rounds
    # Known to `settled` but not to `relative`: good enough once the budget has ended.
    share = (PLAN.relative + PLAN.settled) / 2
    levels = itertools.cycle([50 * (1 - share), 50 * (1 + share)])
    timing = measure(lambda _: honest(next(levels)), plan, CALLS, True, False)
    assert (timing.rounds, timing.converged) == (PLAN.least_rounds, True)


# --- the reported time against the measured one


def allowed_us(measured_us: float) -> float:
    return measured_us - limit_us(measured_us, CALLS)


def measured_for(allowed: float) -> float:
    """The measured time for which this is the least score."""
    slack_us = POLICY.slack_us / CALLS
    by_share = (allowed - slack_us) / (1 - POLICY.limit_share)
    return max(allowed + POLICY.limit_us - slack_us, by_share)


def test_a_report_within_the_limit_counts() -> None:
    measured = measured_for(999.5)
    timing = timed(Sample(1000, measured))
    assert (timing.time_us, timing.external_us, timing.fault) == (1000, measured, None)
    assert timing.ci_us == (1000, 1000)


def test_a_report_below_the_limit_is_replaced_by_what_the_clock_allows() -> None:
    measured = measured_for(1000)
    timing = timed(Sample(950, measured))
    assert timing.time_us == pytest.approx(1000)
    assert timing.ci_us == (timing.time_us, measured)
    assert timing.fault is None


@pytest.mark.parametrize(("above_us", "settled"), [(0.2, True), (0.4, False)])
def test_where_the_clocks_disagree_nothing_has_settled(above_us: float, settled: bool) -> None:
    """An honest kernel was unlucky and must not rank by it; a forger must not rank at all."""
    timing = timed(Sample(50, 50 + above_us + ROOM_US))
    assert timing.time_us == pytest.approx(50 + above_us)
    assert timing.converged is settled


@given(reported=us, measured=us, calls=st.integers(1, 200))
def test_a_forger_gains_no_more_than_the_limit(
    reported: float, measured: float, calls: int
) -> None:
    """Not even if its rounds cost a little less than idle ones did."""
    timing = measure(rounds_of(Sample(reported, measured)), PLAN, calls, True, True)
    limit = max(POLICY.limit_us, POLICY.limit_share * measured)
    assert timing.time_us >= measured - limit
    if POLICY.slack_us / calls <= limit:
        assert timing.time_us >= measured + POLICY.slack_us / calls - limit - 1e-6


def test_on_a_noisy_machine_a_score_loses_before_it_is_called_a_forgery() -> None:
    """Honest rounds that all measure 6 µs a call too long: neither ranked nor rejected."""
    timing = measure(rounds_of(Sample(20, 26)), PLAN, CALLS, True, True)
    assert timing.fault is None
    assert not timing.converged
    assert timing.time_us == pytest.approx(26 - ROOM_US)
    slow = measure(rounds_of(Sample(950, 1000)), PLAN, 4, True, True)
    limit = POLICY.limit_share * 1000
    assert slow.time_us == pytest.approx(1000 - limit + POLICY.slack_us / 4)
    assert slow.fault is None


def test_a_report_far_below_is_a_forgery() -> None:
    timing = timed(Sample(20, measured_for(1000)))
    assert timing.time_us == pytest.approx(1000)
    assert timing.fault is not None
    assert (timing.fault.verdict, timing.fault.rule) == (Verdict.REJECTED, Rule.TIME_CLAIM)
    assert "20.0 µs" in timing.fault.reason
    assert "1000.0 µs" in timing.fault.reason


@pytest.mark.parametrize(("apart_us", "forged"), [(0.9, False), (1.1, True)])
def test_a_difference_of_a_few_microseconds_is_no_forgery(apart_us: float, forged: bool) -> None:
    reported = POLICY.forged_least_us
    beyond_doubt_us = reported + apart_us * POLICY.forged_least_us
    timing = timed(Sample(reported, beyond_doubt_us + POLICY.most_doubt_us / CALLS))
    assert (timing.fault is not None) is forged


@pytest.mark.parametrize(("share", "forged"), [(1.01, False), (0.99, True)])
def test_a_difference_of_some_percent_is_no_forgery(share: float, forged: bool) -> None:
    timing = timed(Sample(share * POLICY.forged_share * 1000, measured_for(1000)))
    assert (timing.fault is not None) is forged


def test_rounds_that_were_delayed_prove_no_forgery() -> None:
    delayed, fine = Sample(1000, 9000), Sample(1000, 1000)
    timing = timed(delayed, fine, fine, Sample(1000, 5000), fine, fine)
    assert (timing.time_us, timing.external_us, timing.fault) == (1000, 1000, None)
    always = timed(fine, *[delayed] * PLAN.most_rounds)
    assert (always.fault, always.converged) == (None, False)


def test_an_interval_that_ranks_spans_no_more_than_the_clocks_differ() -> None:
    """Otherwise its upper end were the measured time, a tie with slower kernels."""
    timing = timed(Sample(50, 50 + 0.2 + ROOM_US))
    assert timing.converged
    assert timing.ci_us == pytest.approx((50.2, 50.2 * (1 + POLICY.agree_share)))


def test_bad_luck_gets_overtime_too() -> None:
    """A case whose reports are known, and whose measured times need more rounds."""
    unlucky = Sample(50, 50 + ROOM_US + 2)
    timing = timed(*[unlucky] * 7, honest(), budget_s=0, overtime_s=60)
    assert (timing.rounds, timing.converged) == (15, True)


def test_being_fast_in_half_of_the_rounds_gains_no_more_than_never() -> None:
    """Whatever is reported of all of them."""
    slow, fast = Sample(40, 50), Sample(40, 40)
    half = timed(*[slow, fast] * (PLAN.most_rounds // 2))
    assert half.time_us == pytest.approx(50 - ROOM_US)
    assert not half.converged
    mostly = timed(*[slow, fast, fast] * (PLAN.most_rounds // 3))
    assert (mostly.time_us, mostly.converged) == (40, True)


def test_times_that_do_not_rank_are_taken_as_reported() -> None:
    timing = timed(Sample(20, 1000), ranks=False)
    assert (timing.time_us, timing.ci_us, timing.fault) == (20, (20, 20), None)


@given(st.lists(st.tuples(us, us), min_size=1, max_size=20))
def test_a_score_is_the_larger_of_report_and_clock(rounds: list[tuple[float, float]]) -> None:
    samples = [Sample(reported, measured) for reported, measured in rounds]
    timing = timed(*samples, most_rounds=20, budget_s=60)
    # `rounds_of` repeats the last round, so that the rounds that were run are known.
    ran = (samples + [samples[-1]] * 20)[: timing.rounds]
    reported = estimate([sample.reported_us for sample in ran]).value
    all_measured = sorted(sample.measured_us for sample in ran)
    measured = all_measured[len(ran) // 2]
    allowed = allowed_us(measured)
    assert (timing.time_us, timing.external_us) == (
        max(reported, allowed, POLICY.least_us),
        measured,
    )
    least = min(allowed, all_measured[0] - POLICY.most_doubt_us / CALLS)
    assert (timing.fault is not None) == (
        reported < POLICY.forged_share * least and least - reported > POLICY.forged_least_us
    )
    assert timing.ci_us[0] <= timing.time_us <= timing.ci_us[1]


@pytest.mark.parametrize("zeros", [1, PLAN.least_rounds])
@pytest.mark.parametrize("ranks", [False, True])
def test_a_report_of_zero_still_gives_a_positive_interval(zeros: int, ranks: bool) -> None:
    """Its logarithm is taken; a forged zero must not be an error of the judge."""
    nothing = [Sample(0, 0)] * zeros
    timing = timed(*nothing, Sample(ROOM_US / 2, ROOM_US / 2), ranks=ranks, budget_s=0)
    low, high = timing.ci_us
    assert 0 < low <= timing.time_us <= high


def test_working_ahead_in_the_first_round_alone_gains_next_to_nothing() -> None:
    """It has no deferred inputs, which is no secret; the estimate of six is next to it instead."""
    others = [99.95, 100.05, 99.98, 100.02, 100.0] * 8
    samples = [Sample(us, us) for us in (50.0, *others)]
    timing = measure(samples.__getitem__, PLANS["cuda", "full"], CALLS, True, True)
    assert timing.fault is None
    assert timing.rounds > 6, "it makes the interval wide"
    assert timing.time_us >= 99.95


# --- the chip's own clock


def test_a_time_has_the_clock_of_each_round_that_counts() -> None:
    hot = Sample(1000, 1000, "thermal limit", 1700.0)
    counts = [Sample(1000, 1000, None, 1979.0 + i) for i in range(PLAN.least_rounds)]
    assert timed(hot, *counts).round_mhz == [s.sm_mhz for s in counts]


def test_where_one_round_has_no_clock_none_is_given() -> None:
    samples = [Sample(1000, 1000, None, 1979.0), Sample(1000, 1000)]
    timing = timed(*samples)
    assert timing.round_mhz == []
    assert timing.rounds == PLAN.least_rounds
