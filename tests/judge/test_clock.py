"""The outside clock: what it takes off, when it stops, what it overrules, and what is ranked."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.judge import grade
from grader.judge.clock import (
    FORGED_LEAST_US,
    FORGED_SHARE,
    LEAST_US,
    PLANS,
    RELATIVE_DOUBT,
    ROUND_DOUBT_US,
    Bracket,
    Overhead,
    Plan,
    Sample,
    Timing,
    measure,
    overhead_of,
)
from grader.judge.grade import _scored
from grader.judge.record import Effort
from grader.report import CaseResult, Report, Rule, Verdict
from grader.sandbox.process import ProcessSandbox
from grader.stats import median, median_interval
from grader.submission import Submission
from tests.judge.conftest import HONEST, WriteProblem

PLAN = Plan(8_000, 4, 64, 6, 40, 3.0, 0.002, most_discarded=10)
CALLS = 10

us = st.floats(0, 1e7)
brackets = st.builds(Bracket, st.integers(1, 64), us, us, us)
overheads = st.builds(Overhead, st.one_of(us, st.just(math.inf)), us, us)


def rounds_of(*samples: Sample) -> Callable[[int], Sample]:
    """Rounds that go as told, and then like the last of them."""
    endless = itertools.chain(samples, itertools.repeat(samples[-1]))
    return lambda _: next(endless)


def honest(claim_us: float = 50.0, complaint: str | None = None) -> Sample:
    return Sample(claim_us, claim_us, complaint)


def timed(*samples: Sample, doubt_us: float | None = 100.0, **changes: Any) -> Timing:
    return measure(rounds_of(*samples), replace(PLAN, **changes), CALLS, True, doubt_us)


# --- what is taken off the outside time


@given(overheads, brackets)
def test_a_time_from_outside_is_never_negative(overhead: Overhead, bracket: Bracket) -> None:
    assert 0 <= overhead.external_us(bracket) <= bracket.total_us / bracket.calls


@given(overheads, brackets, us)
def test_slowing_the_publishing_down_is_not_taken_off(
    overhead: Overhead, bracket: Bracket, more_us: float
) -> None:
    """A copy of the inputs that takes longer than calibrated counts into the time."""
    slowed = replace(
        bracket,
        total_us=bracket.total_us + more_us,
        publish_us=overhead.publish_us + more_us,
    )
    if not math.isfinite(overhead.publish_us):
        return
    taken_off = slowed.total_us - overhead.cost_us - overhead.external_us(slowed) * slowed.calls
    assert taken_off <= overhead.publish_us + 1e-6 * slowed.total_us


@given(overheads, brackets)
def test_no_more_is_taken_off_than_was_published(overhead: Overhead, bracket: Bracket) -> None:
    least = bracket.total_us - bracket.publish_us - overhead.cost_us
    assert overhead.external_us(bracket) * bracket.calls >= least - 1e-6 * bracket.total_us


@given(overheads, brackets, us)
def test_whoever_claims_less_gains_nothing_outside(
    overhead: Overhead, bracket: Bracket, claim_us: float
) -> None:
    lying = replace(bracket, claim_us=claim_us)
    assert overhead.external_us(lying) == overhead.external_us(bracket)


def test_an_honest_round_is_known_by_its_parts() -> None:
    bracket = Bracket(calls=10, claim_us=500, total_us=800, publish_us=200)
    assert bracket.rest_us == 100
    assert Overhead(publish_us=210, cost_us=100).external_us(bracket) == 50
    assert Overhead(publish_us=150, cost_us=100).external_us(bracket) == 55
    assert Overhead().external_us(bracket) == 60


calibrations = st.lists(brackets, min_size=3, max_size=15)


@given(calibrations)
def test_calibration_is_the_median_its_spread_and_the_longest_publishing(
    seen: list[Bracket],
) -> None:
    overhead = overhead_of(seen)
    rests = sorted(bracket.rest_us for bracket in seen)
    assert overhead.cost_us == median(rests)
    assert overhead.publish_us == max(bracket.publish_us for bracket in seen)
    assert overhead.doubt_us == pytest.approx(ROUND_DOUBT_US + rests[-2] - overhead.cost_us)
    assert overhead.doubt_us >= ROUND_DOUBT_US


@given(calibrations, st.floats(0, 1e9))
def test_one_hiccup_more_does_not_widen_the_doubt_without_bound(
    seen: list[Bracket], hiccup_us: float
) -> None:
    worst = max(seen, key=lambda bracket: bracket.rest_us)
    held_up = replace(worst, total_us=worst.total_us + hiccup_us)
    others = [bracket for bracket in seen if bracket is not worst]
    before, after = overhead_of(seen), overhead_of([*others, held_up])
    assert after.doubt_us == pytest.approx(before.doubt_us)


# --- when a measurement stops


def test_it_stops_as_soon_as_the_median_is_known() -> None:
    timing = timed(honest())
    assert (timing.rounds, timing.converged, timing.discarded) == (PLAN.least_rounds, True, {})
    assert (timing.time_us, timing.ci_us, timing.external_us) == (50, (50, 50), 50)
    assert (timing.calls_per_round, timing.graph, timing.fault) == (CALLS, True, None)


def test_the_time_is_the_median_claim_with_its_interval() -> None:
    claims = [50.0, 50.01, 49.99, 50.02, 49.98, 50.0]
    timing = timed(*map(honest, claims))
    assert timing.rounds == len(claims)
    assert timing.time_us == median(claims)
    assert timing.ci_us == median_interval(claims)


def test_every_round_has_a_number_of_its_own() -> None:
    """Its inputs come of that number: a discarded round's must not come again."""
    asked: list[int] = []

    def one_round(index: int) -> Sample:
        asked.append(index)
        return honest(complaint="too hot" if len(asked) % 2 else None)

    measure(one_round, PLAN, CALLS, False, None)
    assert asked == list(range(len(asked)))
    assert len(asked) == 2 * PLAN.least_rounds


def test_rounds_of_a_chip_held_back_are_left_out_and_counted() -> None:
    hot, slow = honest(80, "thermal limit"), honest(90, "power brake")
    timing = timed(hot, honest(), slow, hot, honest())
    assert timing.discarded == {"thermal limit": 2, "power brake": 1}
    assert (timing.time_us, timing.rounds, timing.converged) == (50, PLAN.least_rounds, True)


def test_beyond_the_cap_they_count_and_nothing_converges() -> None:
    timing = timed(honest(80, "thermal limit"))
    assert timing.discarded == {"thermal limit": PLAN.most_discarded}
    assert timing.rounds == PLAN.least_rounds
    assert timing.time_us == 80
    assert not timing.converged


def test_one_complaint_beyond_the_cap_is_enough() -> None:
    timing = timed(honest(50, "power brake"), honest(), most_discarded=0)
    assert (timing.discarded, timing.converged) == ({}, False)


def unsettled() -> Iterator[Sample]:
    return map(honest, itertools.cycle([50.0, 60.0]))


def test_what_does_not_settle_ends_at_the_most_rounds() -> None:
    samples = unsettled()
    timing = measure(lambda _: next(samples), PLAN, CALLS, True, None)
    assert (timing.rounds, timing.converged) == (PLAN.most_rounds, False)


def test_what_does_not_settle_ends_with_the_budget() -> None:
    samples = unsettled()

    def slow(_: int) -> Sample:
        time.sleep(0.02)
        return next(samples)

    start_s = time.monotonic()
    timing = measure(slow, replace(PLAN, budget_s=0.2), CALLS, True, None)
    assert time.monotonic() - start_s < 2
    assert PLAN.least_rounds <= timing.rounds < PLAN.most_rounds
    assert not timing.converged


def test_a_budget_that_is_spent_still_grants_the_least_rounds() -> None:
    samples = unsettled()
    timing = measure(lambda _: next(samples), replace(PLAN, budget_s=0), CALLS, True, None)
    assert timing.rounds == PLAN.least_rounds


def test_every_plan_can_be_kept() -> None:
    for plan in PLANS.values():
        assert 2 <= plan.least_calls <= plan.most_calls
        assert 1 < plan.least_rounds <= plan.most_rounds
        assert 0 < plan.relative < 0.1
        assert plan.budget_s > 0
    # Fewer rounds than six have no interval of 95 %: docs of `median_interval`.
    assert PLANS["cuda", "full"].least_rounds >= 6


# --- the claim against the outside clock


def allowed_us(external_us: float, doubt_us: float) -> float:
    return external_us * (1 - RELATIVE_DOUBT) - doubt_us / CALLS


def test_a_claim_within_the_doubt_counts() -> None:
    timing = timed(Sample(50, 55), doubt_us=60)
    assert (timing.time_us, timing.external_us, timing.fault) == (50, 55, None)


def test_a_shaved_claim_is_replaced_by_what_the_clock_allows() -> None:
    timing = timed(Sample(52, 57), doubt_us=10)
    assert timing.time_us == allowed_us(57, 10)
    assert timing.time_us > 52
    assert timing.ci_us == (timing.time_us, 57)
    assert timing.fault is None


def test_a_claim_far_below_is_a_forgery() -> None:
    timing = timed(Sample(20, 57), doubt_us=10)
    assert timing.time_us == allowed_us(57, 10)
    assert timing.fault is not None
    assert (timing.fault.verdict, timing.fault.rule) == (Verdict.REJECTED, Rule.TIME_CLAIM)
    assert "20.0 µs" in timing.fault.reason
    assert "55.7 µs" in timing.fault.reason


def test_a_difference_of_a_few_microseconds_is_no_forgery() -> None:
    external = 5.0
    assert allowed_us(external, 0) - 2.0 <= FORGED_LEAST_US
    assert timed(Sample(2.0, external), doubt_us=0).fault is None


def test_where_times_are_not_ranked_claims_are_taken_as_such() -> None:
    timing = timed(Sample(20, 1000), doubt_us=None)
    assert (timing.time_us, timing.ci_us, timing.fault) == (20, (20, 20), None)


@given(st.lists(st.tuples(us, us), min_size=1, max_size=20), st.floats(0, 1e4))
def test_a_score_is_the_larger_of_claim_and_clock(
    rounds: list[tuple[float, float]], doubt_us: float
) -> None:
    samples = [Sample(claim, external) for claim, external in rounds]
    timing = timed(*samples, doubt_us=doubt_us, most_rounds=20, budget_s=60)
    # `rounds_of` repeats the last round, so that the rounds that were run are known.
    ran = (samples + [samples[-1]] * 20)[: timing.rounds]
    claim = median([sample.claim_us for sample in ran])
    allowed = allowed_us(median([sample.external_us for sample in ran]), doubt_us)
    assert timing.time_us == max(claim, allowed, LEAST_US)
    assert (timing.fault is not None) == (
        claim < FORGED_SHARE * allowed and allowed - claim > FORGED_LEAST_US
    )


@pytest.mark.parametrize("zeros", [1, PLAN.least_rounds])
@pytest.mark.parametrize("doubt_us", [None, 1e6])
def test_claims_of_nothing_still_give_an_interval_that_can_be_scored(
    make_report: Callable[..., Report], zeros: int, doubt_us: float | None
) -> None:
    """A logarithm is taken of both ends; a forged zero must not be the judge's own fault."""
    timing = timed(*[Sample(0, 0)] * zeros, honest(), doubt_us=doubt_us, budget_s=0)
    low, high = timing.ci_us
    assert 0 < low <= timing.time_us <= high
    case = benchmark_case(time_us=timing.time_us, ci_us=timing.ci_us)
    assert _scored(make_report(cases=[case]), "full").score_us == pytest.approx(timing.time_us)


# --- what is scored, and what is ranked


def benchmark_case(**changes: Any) -> CaseResult:
    fields: dict[str, Any] = {
        "name": "square",
        "kind": "benchmark",
        "params": {},
        "status": "passed",
        "time_us": 40.0,
        "ci_us": (39.0, 41.0),
        "converged": True,
        "baseline_us": {"eager": 80.0},
    }
    return CaseResult.model_validate(fields | changes)


def scored(report: Callable[..., Report], effort: Effort, *cases: CaseResult) -> Report:
    bare = report(cases=list(cases), score_us=None, score_ci_us=None, speedup={}, ranked=False)
    return _scored(bare, effort)


def test_a_score_is_the_geometric_mean_of_the_benchmarks(
    make_report: Callable[..., Report],
) -> None:
    test = CaseResult(name="tiny", kind="test", params={}, status="passed")
    other = benchmark_case(
        name="wide",
        time_us=90.0,
        ci_us=(89.0, 91.0),
        baseline_us={"eager": 45.0, "library": 9.0},
    )
    report = scored(make_report, "full", test, benchmark_case(), other)
    assert report.score_us == pytest.approx(60)
    assert report.score_ci_us is not None
    assert report.score_ci_us[0] < 60 < report.score_ci_us[1]
    # `library` was not timed on every case: no mean over all of them.
    assert report.speedup == {"eager": pytest.approx(1.0)}
    assert (report.ranked, report.notes) == (True, [])


@pytest.mark.parametrize("converged", [False, None])
def test_a_case_that_did_not_settle_is_scored_and_not_ranked(
    make_report: Callable[..., Report], converged: bool | None
) -> None:
    loose = benchmark_case(name="wide", converged=converged)
    report = scored(make_report, "full", benchmark_case(), loose)
    assert not report.ranked
    assert report.score_us == pytest.approx(40)
    assert report.notes == ["not ranked: the time of wide did not settle; submit it again"]


def test_quick_times_are_scored_and_never_ranked(make_report: Callable[..., Report]) -> None:
    settled = scored(make_report, "quick", benchmark_case())
    loose = scored(make_report, "quick", benchmark_case(converged=False))
    for report in (settled, loose):
        assert (report.ranked, report.notes) == (False, [])
        assert report.score_us == pytest.approx(40)


def test_without_a_timed_case_there_is_no_score(make_report: Callable[..., Report]) -> None:
    untimed = benchmark_case(time_us=None, ci_us=None, status="not_run")
    report = scored(make_report, "full", untimed)
    assert (report.score_us, report.ranked) == (None, False)


# --- the real path on a CPU


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_a_cpu_gives_times_and_no_rank_at_any_effort(
    write_problem: WriteProblem, tmp_path: Path, effort: Effort
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    report = grade(
        write_problem(),
        Submission.read(path, 10_000),
        sandbox=ProcessSandbox(),
        device="cpu",
        effort=effort,
    )
    assert report.verdict is Verdict.ACCEPTED, report.reason
    assert (report.ranked, report.score_us, report.score_ci_us) == (False, None, None)
    small, plan = report.cases[-1], PLANS["cpu", effort]
    assert small.calls_per_round == plan.least_calls
    assert small.rounds is not None
    assert plan.least_rounds <= small.rounds <= plan.most_rounds
    assert small.time_us is not None
    assert small.ci_us is not None
    assert small.ci_us[0] <= small.time_us <= small.ci_us[1]
    assert (small.graph, small.sol, small.cold_us) == (False, None, None)
    assert small.baseline_us["eager"] > 0
    assert set(report.stages_s) >= {"baseline", "load", "test", "benchmark"}
    assert not any("left out" in note for note in report.notes)


def test_a_benchmark_that_goes_wrong_is_a_wrong_answer(
    write_problem: WriteProblem, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(HONEST + "    out[(x.numel() == 4096) * 7] = 1e9\n    out[0] = x[0] * factor\n")
    report = grade(
        write_problem(), Submission.read(path, 10_000), sandbox=ProcessSandbox(), device="cpu"
    )
    assert report.verdict is Verdict.WRONG_ANSWER
    assert report.reason.startswith("benchmark 'small': ")
    assert [c.status for c in report.cases] == ["passed"] * 3 + ["wrong_answer"]
