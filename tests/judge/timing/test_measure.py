"""The outside clock: what it takes off, when it stops, what it overrules, and what is ranked."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.judge import benchmark as bench
from grader.judge import grade, score
from grader.judge.benchmark import HELD_UP_US, ODD, PACE_SHARE, SUDDEN_SHARE, Bench
from grader.judge.gpu.environment import Ceilings
from grader.judge.integrity.call_order import turned
from grader.judge.memory.argument_sets import set_bytes
from grader.judge.problem_code import Values
from grader.judge.record import Effort, Record
from grader.judge.score import tensor_bound_share
from grader.judge.timing.measure import (
    AGREE_SHARE,
    CHANGES_US,
    COLD_L2,
    DOUBT_US,
    FORGED_LEAST_US,
    FORGED_SHARE,
    LEAST_CALLS,
    LEAST_ROUND_US,
    LEAST_US,
    LIMIT_SHARE,
    LIMIT_US,
    MEMORY_SHARE,
    MOST_DOUBT_US,
    PLANS,
    SLACK_US,
    Overhead,
    Plan,
    Sample,
    Timing,
    calls_per_round,
    gauge,
    is_heavy,
    measure,
    room_us,
)
from grader.judge.timing.round import Bracket
from grader.judge.verdict import Fault, SubmissionFault
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import CaseResult, Report, Rule, Verdict
from grader.sandbox.base import SandboxError
from grader.sandbox.process import ProcessSandbox
from grader.stats import estimate
from grader.submission import Submission
from tests.judge.conftest import HONEST, WriteProblem

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
ROOM_US = LIMIT_US - SLACK_US / CALLS
"""What a short call of such a round may look longer from outside than it is."""

us = st.floats(0, 1e7)
brackets = st.builds(Bracket, st.integers(1, 64), us, us, us)
overheads = st.builds(Overhead, st.one_of(us, st.just(math.inf)), us)


def rounds_of(*samples: Sample) -> Callable[[int], Sample]:
    """Rounds that go as told, and then like the last of them."""
    endless = itertools.chain(samples, itertools.repeat(samples[-1]))
    return lambda _: next(endless)


def honest(claim_us: float = 50.0, complaint: str | None = None) -> Sample:
    return Sample(claim_us, claim_us, complaint)


def timed(*samples: Sample, ranks: bool = True, **changes: Any) -> Timing:
    return measure(rounds_of(*samples), replace(PLAN, **changes), CALLS, True, ranks)


# --- what is taken off the outside time


@given(overheads, brackets)
def test_a_time_from_outside_is_never_negative(overhead: Overhead, bracket: Bracket) -> None:
    assert overhead.outside_us(bracket) >= 0


@given(overheads, brackets)
def test_no_more_is_taken_off_than_a_round_was_seen_to_cost(
    overhead: Overhead, bracket: Bracket
) -> None:
    least = bracket.outside_us - overhead.cost_us
    assert overhead.outside_us(bracket) >= least


@given(overheads, brackets, us)
def test_slowing_the_publishing_down_is_paid_for(
    overhead: Overhead, bracket: Bracket, more_us: float
) -> None:
    """Whoever works while inputs are published slows that down; then it is the call's time too."""
    slowest = replace(bracket, publish_us=min(overhead.publish_us, 1e7))
    disturbed = replace(slowest, publish_us=slowest.publish_us + more_us)
    longer_us = overhead.outside_us(disturbed) - overhead.outside_us(slowest)
    # Where nothing is known nothing is added, nor where nobody can have worked meanwhile.
    if disturbed.publish_us - overhead.publish_us < CHANGES_US:
        assert longer_us == 0
    elif bracket.outside_us >= overhead.cost_us:
        assert longer_us == pytest.approx(more_us, rel=1e-6, abs=1e-6)


@given(overheads, brackets, us)
def test_publishing_that_is_fast_gains_nothing(
    overhead: Overhead, bracket: Bracket, publish_us: float
) -> None:
    fast = replace(bracket, publish_us=min(publish_us, overhead.publish_us))
    assert overhead.outside_us(fast) <= overhead.outside_us(bracket)
    assert overhead.outside_us(fast) == max(0.0, bracket.outside_us - overhead.cost_us)


@given(overheads, brackets, us)
def test_whoever_claims_less_gains_nothing_outside(
    overhead: Overhead, bracket: Bracket, claim_us: float
) -> None:
    lying = replace(bracket, claim_us=claim_us)
    assert overhead.outside_us(lying) == overhead.outside_us(bracket)


def test_an_honest_round_is_known_by_its_parts() -> None:
    bracket = Bracket(calls=10, claim_us=500, outside_us=600, publish_us=200)
    assert bracket.rest_us == 100
    assert Overhead(publish_us=210, cost_us=100).outside_us(bracket) == 500
    assert Overhead(publish_us=150, cost_us=100).outside_us(bracket) == 500
    assert Overhead(publish_us=50, cost_us=100).outside_us(bracket) == 650
    assert Overhead().outside_us(bracket) == 600


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """What is gauged of idle rounds with these rests."""

    def gauged(rests_us: list[float]) -> float:
        found = [Bracket(10, 500, 500 + rest_us, 200) for rest_us in rests_us]
        monkeypatch.setattr("grader.judge.timing.measure.idle_rounds", lambda *_: found)
        return gauge(None)  # type: ignore[arg-type]

    return gauged


rests = st.lists(us, min_size=1, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rests_us=rests)
def test_a_round_costs_the_least_that_was_seen(
    idle: Callable[..., float], rests_us: list[float]
) -> None:
    assert idle(rests_us) == pytest.approx(min(rests_us), abs=1e-3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rests_us=rests, hiccup_us=us)
def test_a_hiccup_takes_no_more_off(
    idle: Callable[..., float], rests_us: list[float], hiccup_us: float
) -> None:
    assert idle([*rests_us, hiccup_us]) <= idle(rests_us)


def test_a_runner_that_captures_nothing_is_no_place_to_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[bool] = []
    block = SimpleNamespace(arena=SimpleNamespace(fd=0), close=lambda: closed.append(True))
    for name, stand_in in {"Block": block, "lend": None, "capture": False}.items():
        monkeypatch.setattr(f"grader.judge.timing.measure.{name}", lambda *_, it=stand_in: it)
    session: Any = SimpleNamespace(ask=lambda *_: None)
    with pytest.raises(SandboxError, match="cannot capture a CUDA graph"):
        gauge(session)
    assert closed


# --- when a measurement stops


def test_it_stops_as_soon_as_the_time_is_known() -> None:
    timing = timed(honest())
    assert (timing.rounds, timing.converged, timing.discarded) == (PLAN.least_rounds, True, {})
    assert (timing.time_us, timing.ci_us, timing.external_us) == (50, (50, 50), 50)
    assert (timing.calls_per_round, timing.graph, timing.fault) == (CALLS, True, None)


def test_the_time_is_the_middle_claim_with_its_interval() -> None:
    claims = [50.0, 50.01, 49.99, 50.02, 49.98, 50.0]
    timing = timed(*map(honest, claims))
    assert timing.rounds == len(claims)
    assert (timing.time_us, timing.ci_us) == estimate(claims)


def test_every_round_has_a_number_of_its_own() -> None:
    """Its inputs come of that number: a discarded round's must not come again."""
    asked: list[int] = []

    def one_round(index: int) -> Sample:
        asked.append(index)
        return honest(complaint="too hot" if len(asked) % 2 else None)

    measure(one_round, PLAN, CALLS, False, False)
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


def scattered(share: float) -> Iterator[Sample]:
    """Rounds whose times lie evenly within ± this share of 50 µs."""
    return (
        honest(50 * (1 + share * step / 3)) for step in itertools.cycle((0, 3, -2, 1, -3, 2, -1))
    )


def test_what_is_known_well_enough_when_time_is_up_has_settled() -> None:
    samples = scattered(0.015)
    timing = measure(lambda _: next(samples), PLAN, CALLS, True, False)
    assert (timing.rounds, timing.converged) == (PLAN.most_rounds, True)


def test_rounds_go_on_until_most_look_as_short_from_outside_as_they_are() -> None:
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


def test_what_does_not_settle_ends_at_the_most_rounds() -> None:
    samples = unsettled()
    timing = measure(lambda _: next(samples), PLAN, CALLS, True, False)
    assert (timing.rounds, timing.converged) == (PLAN.most_rounds, False)


def test_what_does_not_settle_ends_with_the_budget() -> None:
    samples = unsettled()

    def slow(_: int) -> Sample:
        time.sleep(0.02)
        return next(samples)

    start_s = time.monotonic()
    timing = measure(slow, replace(PLAN, budget_s=0.2), CALLS, True, False)
    assert time.monotonic() - start_s < 2
    assert PLAN.least_rounds <= timing.rounds < PLAN.most_rounds
    assert not timing.converged


def test_a_budget_that_is_spent_still_grants_the_least_rounds() -> None:
    samples = unsettled()
    plan = replace(PLAN, budget_s=0, late_s=0)
    timing = measure(lambda _: next(samples), plan, CALLS, True, False)
    assert timing.rounds == plan.least_rounds


def test_what_has_not_settled_when_the_budget_ends_gets_more_time() -> None:
    plan = replace(PLAN, budget_s=0, late_s=60)
    samples = unsettled()
    assert measure(lambda _: next(samples), plan, CALLS, True, False).rounds == plan.most_rounds
    # Known to `settled` but not to `relative`: good enough once the budget has ended.
    share = (PLAN.relative + PLAN.settled) / 2
    levels = itertools.cycle([50 * (1 - share), 50 * (1 + share)])
    timing = measure(lambda _: honest(next(levels)), plan, CALLS, True, False)
    assert (timing.rounds, timing.converged) == (PLAN.least_rounds, True)


def test_every_plan_can_be_kept() -> None:
    for plan in PLANS.values():
        assert plan.most_calls >= 2
        assert 1 < plan.least_rounds <= plan.most_rounds
        assert 0 < plan.relative < 0.1
        assert plan.budget_s > 0
    # Fewer rounds than six have no interval of 95 %, see `middle`.
    assert PLANS["cuda", "full"].least_rounds >= 6


# --- the claim against the outside clock


def allowed_us(external_us: float) -> float:
    return external_us - room_us(external_us, CALLS)


def outside_of(allowed: float) -> float:
    """The outside time that allows so much."""
    slack_us = SLACK_US / CALLS
    return max(allowed + LIMIT_US - slack_us, (allowed - slack_us) / (1 - LIMIT_SHARE))


def test_a_claim_within_the_doubt_counts() -> None:
    external = outside_of(999.5)
    timing = timed(Sample(1000, external))
    assert (timing.time_us, timing.external_us, timing.fault) == (1000, external, None)
    assert timing.ci_us == (1000, 1000)


def test_a_shaved_claim_is_replaced_by_what_the_clock_allows() -> None:
    external = outside_of(1000)
    timing = timed(Sample(950, external))
    assert timing.time_us == pytest.approx(1000)
    assert timing.ci_us == (timing.time_us, external)
    assert timing.fault is None


@pytest.mark.parametrize(("above_us", "settled"), [(0.2, True), (0.4, False)])
def test_where_the_clocks_disagree_nothing_has_settled(above_us: float, settled: bool) -> None:
    """An honest kernel had bad luck and shall not rank by it; a forger shall not rank at all."""
    outside_us = 50 + above_us + ROOM_US
    timing = timed(Sample(50, outside_us))
    assert timing.time_us == pytest.approx(50 + above_us)
    assert timing.converged is settled


@given(claim=us, external=us, calls=st.integers(1, 200))
def test_no_forger_gains_more_than_he_may(claim: float, external: float, calls: int) -> None:
    """Not even if his rounds cost a little less than idle ones did."""
    timing = measure(rounds_of(Sample(claim, external)), PLAN, calls, True, True)
    limit_us = max(LIMIT_US, LIMIT_SHARE * external)
    assert timing.time_us >= external - limit_us
    if SLACK_US / calls <= limit_us:
        assert timing.time_us >= external + SLACK_US / calls - limit_us - 1e-6


def test_on_a_noisy_machine_a_score_loses_before_anybody_is_blamed() -> None:
    """Honest rounds that all look 6 µs a call longer than they are: neither ranked nor rejected."""
    timing = measure(rounds_of(Sample(20, 26)), PLAN, CALLS, True, True)
    assert timing.fault is None
    assert not timing.converged
    assert timing.time_us == pytest.approx(26 - ROOM_US)
    slow = measure(rounds_of(Sample(950, 1000)), PLAN, 4, True, True)
    assert slow.time_us == pytest.approx(1000 - LIMIT_SHARE * 1000 + SLACK_US / 4)
    assert slow.fault is None


def test_a_claim_far_below_is_a_forgery() -> None:
    timing = timed(Sample(20, outside_of(1000)))
    assert timing.time_us == pytest.approx(1000)
    assert timing.fault is not None
    assert (timing.fault.verdict, timing.fault.rule) == (Verdict.REJECTED, Rule.TIME_CLAIM)
    assert "20.0 µs" in timing.fault.reason
    assert "1000.0 µs" in timing.fault.reason


@pytest.mark.parametrize(("apart_us", "forged"), [(0.9, False), (1.1, True)])
def test_a_difference_of_a_few_microseconds_is_no_forgery(apart_us: float, forged: bool) -> None:
    claim = FORGED_LEAST_US
    beyond_doubt_us = claim + apart_us * FORGED_LEAST_US
    timing = timed(Sample(claim, beyond_doubt_us + MOST_DOUBT_US / CALLS))
    assert (timing.fault is not None) is forged


@pytest.mark.parametrize(("share", "forged"), [(1.01, False), (0.99, True)])
def test_a_difference_of_some_percent_is_no_forgery(share: float, forged: bool) -> None:
    timing = timed(Sample(share * FORGED_SHARE * 1000, outside_of(1000)))
    assert (timing.fault is not None) is forged


def test_rounds_that_were_held_up_outside_blame_nobody() -> None:
    held_up, fine = Sample(1000, 9000), Sample(1000, 1000)
    timing = timed(held_up, fine, fine, Sample(1000, 5000), fine, fine)
    assert (timing.time_us, timing.external_us, timing.fault) == (1000, 1000, None)
    always = timed(fine, *[held_up] * PLAN.most_rounds)
    assert (always.fault, always.converged) == (None, False)


def test_an_interval_that_ranks_reaches_no_further_than_the_clocks_differ() -> None:
    """Else its upper end were the outside time, and so a tie with whoever is as slow."""
    timing = timed(Sample(50, 50 + 0.2 + ROOM_US))
    assert timing.converged
    assert timing.ci_us == pytest.approx((50.2, 50.2 * (1 + AGREE_SHARE)))


def test_bad_luck_has_the_late_seconds_too() -> None:
    """A case whose claims are known, and whose outside times need more rounds."""
    unlucky = Sample(50, 50 + ROOM_US + 2)
    timing = timed(*[unlucky] * 7, honest(), budget_s=0, late_s=60)
    assert (timing.rounds, timing.converged) == (15, True)


def test_who_is_fast_in_half_of_the_rounds_gains_no_more_than_who_never_is() -> None:
    """However fast he claims to have been in all of them."""
    slow, fast = Sample(40, 50), Sample(40, 40)
    half = timed(*[slow, fast] * (PLAN.most_rounds // 2))
    assert half.time_us == pytest.approx(50 - ROOM_US)
    assert not half.converged
    mostly = timed(*[slow, fast, fast] * (PLAN.most_rounds // 3))
    assert (mostly.time_us, mostly.converged) == (40, True)


def test_where_times_are_not_ranked_claims_are_taken_as_such() -> None:
    timing = timed(Sample(20, 1000), ranks=False)
    assert (timing.time_us, timing.ci_us, timing.fault) == (20, (20, 20), None)


@given(st.lists(st.tuples(us, us), min_size=1, max_size=20))
def test_a_score_is_the_larger_of_claim_and_clock(rounds: list[tuple[float, float]]) -> None:
    samples = [Sample(claim, external) for claim, external in rounds]
    timing = timed(*samples, most_rounds=20, budget_s=60)
    # `rounds_of` repeats the last round, so that the rounds that were run are known.
    ran = (samples + [samples[-1]] * 20)[: timing.rounds]
    claim = estimate([sample.claim_us for sample in ran]).value
    externals = sorted(sample.external_us for sample in ran)
    external = externals[len(ran) // 2]
    allowed = allowed_us(external)
    assert (timing.time_us, timing.external_us) == (max(claim, allowed, LEAST_US), external)
    least = min(allowed, externals[0] - MOST_DOUBT_US / CALLS)
    assert (timing.fault is not None) == (
        claim < FORGED_SHARE * least and least - claim > FORGED_LEAST_US
    )
    assert timing.ci_us[0] <= timing.time_us <= timing.ci_us[1]


@pytest.mark.parametrize("zeros", [1, PLAN.least_rounds])
@pytest.mark.parametrize("ranks", [False, True])
def test_claims_of_nothing_still_give_an_interval_that_can_be_scored(
    make_report: Callable[..., Report], zeros: int, ranks: bool
) -> None:
    """A logarithm is taken of both ends; a forged zero must not be the judge's own fault."""
    nothing = [Sample(0, 0)] * zeros
    timing = timed(*nothing, Sample(ROOM_US / 2, ROOM_US / 2), ranks=ranks, budget_s=0)
    low, high = timing.ci_us
    assert 0 < low <= timing.time_us <= high
    case = benchmark_case(time_us=timing.time_us, ci_us=timing.ci_us)
    assert scored(make_report, "full", case).score_us == pytest.approx(timing.time_us)


# --- how many calls a round has

H100 = SimpleNamespace(L2_cache_size=50 << 20, total_memory=80 << 30)
CEILINGS = Ceilings(bytes_per_s=3e12, fp32_per_s=5e13, tensor_per_s=7e14)
SIZES = [1, 1000, 1 << 16, 1 << 20, 1 << 24, 1 << 27]


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of which only the figures are there."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: H100)
    monkeypatch.setattr("grader.judge.timing.measure.measure_ceilings", lambda: CEILINGS)


def of_size(problem: Problem, n: int) -> tuple[Case, Values]:
    """A case of the tiny problem, and inputs whose memory is never touched."""
    case = Case(name="any", params={"n": n, "dtype": "fp32"})
    return case, {"x": torch.empty(n), "total": torch.empty(n), "factor": 2.0}


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("effort", ["quick", "full"])
@pytest.mark.parametrize("n", SIZES)
def test_a_round_is_known_well_and_cold_where_there_is_room(
    write_problem: WriteProblem, n: int, effort: Effort
) -> None:
    problem = write_problem()
    case, template = of_size(problem, n)
    calls = calls_per_round(problem, case, template, "cuda", effort)
    most, one = PLANS["cuda", effort].most_calls, set_bytes(problem, case, template)
    assert LEAST_CALLS <= calls <= most
    # The judge holds a set at least twice: lent, and as an image of its own.
    assert calls == LEAST_CALLS or 2 * calls * one <= MEMORY_SHARE * H100.total_memory
    if calls < most and 4 * (calls + 1) * one < MEMORY_SHARE * H100.total_memory:
        floor = CEILINGS.floor_us(problem.bytes(case), problem.flops(case), "fp32")
        assert calls * room_us(floor, calls) + 1e-6 >= DOUBT_US[True]
        assert calls * floor >= LEAST_ROUND_US
        assert (calls - 1) * one >= COLD_L2 * H100.L2_cache_size


@pytest.mark.usefixtures("h100")
def test_those_that_share_a_gpu_share_its_memory(write_problem: WriteProblem) -> None:
    problem = write_problem()
    case, template = of_size(problem, 1 << 27)
    one = set_bytes(problem, case, template)
    alone = calls_per_round(problem, case, template, "cuda")
    shared = calls_per_round(problem, case, template, "cuda", sharing=2)
    assert LEAST_CALLS <= shared <= alone
    assert shared == LEAST_CALLS or 2 * 2 * shared * one <= MEMORY_SHARE * H100.total_memory


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("n", SIZES)
def test_rounds_that_wait_at_no_gate_are_as_long_as_they_need(
    write_problem: WriteProblem, n: int
) -> None:
    """A message starts them, and processors are slower than the GPU's own gate."""
    problem = write_problem()
    case, template = of_size(problem, n)
    waiting, others = (
        calls_per_round(problem, case, template, "cuda", gate=gate) for gate in (True, False)
    )
    assert waiting <= others <= PLANS["cuda", "full"].most_calls
    one = set_bytes(problem, case, template)
    has_room = 4 * (others + 1) * one < MEMORY_SHARE * H100.total_memory
    if has_room and others < PLANS["cuda", "full"].most_calls:
        floor = CEILINGS.floor_us(problem.bytes(case), problem.flops(case), "fp32")
        assert others * room_us(floor, others) + 1e-6 >= DOUBT_US[False]


def test_more_that_is_published_may_take_as_much_longer() -> None:
    overhead = Overhead(publish_us=200, cost_us=100)
    assert overhead.of_rounds(1.5) == Overhead(publish_us=300, cost_us=100)
    assert Overhead().of_rounds(2) == Overhead()


@pytest.mark.parametrize("is_held_up", [False, True])
@pytest.mark.parametrize(
    ("captured", "ranks", "lengths"),
    [
        (True, True, [(True, True)]),
        (False, True, [(True, True), (False, False)]),
        (False, False, [(True, True)]),
    ],
)
def test_what_cannot_be_captured_is_measured_in_rounds_of_its_own_length(
    monkeypatch: pytest.MonkeyPatch,
    captured: bool,
    ranks: bool,
    lengths: list[tuple[bool, bool]],
    is_held_up: bool,
) -> None:
    opened: list[tuple[bool, bool]] = []

    @contextlib.contextmanager
    def opened_like(grading: Any, case: Any, gate: bool, captures: bool) -> Iterator[Any]:
        opened.append((gate, captures))
        calls = CALLS if gate else 2 * CALLS
        yield SimpleNamespace(
            next=lambda _: honest(),
            plan=PLAN,
            calls=calls,
            graph=captured and gate,
            is_for_gates=gate and not captured and ranks,
            unseen="came too late" if is_held_up else None,
        )

    monkeypatch.setattr(bench, "opened", opened_like)
    monkeypatch.setattr(bench, "_result", lambda _, timing: timing)
    grading: Any = SimpleNamespace(ranks=ranks, record=Record())
    timing: Any = bench.benchmark(grading, Case(name="any", params={}))
    assert opened == lengths
    assert timing.calls_per_round == (2 * CALLS if len(lengths) == 2 else CALLS)
    assert (timing.time_us, timing.graph) == (50, captured)
    assert timing.converged is not is_held_up, "what could not be watched does not rank"
    assert any("came too late" in note for note in grading.record.notes) is is_held_up


@pytest.mark.parametrize(
    ("device", "ranks", "is_far", "is_late", "meetings", "unseen"),
    [
        ("cuda", True, False, False, 0, None),
        ("cuda", True, True, False, 0, "the sets are too large"),
        ("cuda", False, True, False, 0, None),  # practice
        ("cpu", True, True, False, 0, None),  # where nothing is watched
        ("cuda", True, False, True, 0, "came too late"),
        ("cuda", True, False, False, 1, "began before the one before it had ended"),
        ("cuda", False, False, False, 1, None),
    ],
)
def test_what_could_not_be_watched_or_looked_odd_does_not_rank(
    device: str, ranks: bool, is_far: bool, is_late: bool, meetings: int, unseen: str | None
) -> None:
    one: Any = Bench.__new__(Bench)
    one.grading, one.meetings = SimpleNamespace(ranks=ranks), meetings
    one.loan = SimpleNamespace(device=device, poisons_image=False)
    one.lookout = None if is_far else object()
    one.late = SimpleNamespace(tally=SimpleNamespace(tells=False)) if is_late else None
    assert one.unseen is None if unseen is None else unseen in one.unseen


def test_inputs_of_rounds_that_do_not_wait_are_others() -> None:
    """They may have as many calls: answers kept from the try to capture must not do."""
    seeds: list[int] = []

    def inputs(_: Case, seed: int) -> Values:
        seeds.append(seed)
        return {}

    problem = SimpleNamespace(variants=lambda _: [])
    code = SimpleNamespace(inputs=inputs)
    grading: Any = SimpleNamespace(master=1, code=code, problem=problem)
    loan: Any = SimpleNamespace(layout=SimpleNamespace(sets=[None] * 4), scalars={})
    for gate in (True, False):
        one = Bench.__new__(Bench)
        one.grading, one.case, one.loan = grading, Case(name="any", params={}), loan
        one.gate = gate
        one.inputs(3, 2)
    assert len(set(seeds)) == 2


def test_rounds_that_are_no_replays_begin_with_any_set_and_go_around() -> None:
    bench = Bench.__new__(Bench)
    bench.loan = SimpleNamespace(layout=SimpleNamespace(sets=[None] * 6))  # type: ignore[assignment]
    bench.graph = True
    assert all(bench._order() == [0, 1, 2, 3, 4, 5] for _ in range(50))
    bench.graph = False
    orders = [bench._order() for _ in range(200)]
    assert {order[0] for order in orders} == set(range(6))
    assert all(order == turned(6, order[0]) for order in orders)


def test_some_rounds_have_each_other_kind_once_and_the_rest_have_none() -> None:
    others = [Case(name="any", params={"values": kind}) for kind in ("large", "masked", "equal")]
    bench = Bench.__new__(Bench)
    bench.case, bench.gate = Case(name="any", params={"values": "normal"}), True
    problem = SimpleNamespace(variants=lambda _: others)

    def odd(index: int, calls: int, master: int = 1) -> dict[int, str]:
        bench.grading = SimpleNamespace(master=master, problem=problem)  # type: ignore[assignment]
        bench.loan = SimpleNamespace(layout=SimpleNamespace(sets=[None] * calls))  # type: ignore[assignment]
        cases = [bench._case_of(index, i) for i in range(calls)]
        return {i: c.params["values"] for i, c in enumerate(cases) if c is not bench.case}

    rounds = [odd(ODD, 20, master) for master in range(12)]
    assert all(sorted(one.values()) == ["equal", "large", "masked"] for one in rounds)
    assert len({i for one in rounds for i in one}) > 10, "elsewhere in each grading"
    few = [odd(ODD + number, 2) for number in (0, 1)]
    assert [len(one) for one in few] == [2, 1]
    assert sorted([*few[0].values(), *few[1].values()]) == ["equal", "large", "masked"]
    assert not any(odd(n, 20) for n in (-10, 0, 1, 40))


def test_the_time_of_rounds_with_other_kinds_does_not_count() -> None:
    """They come once, before a round that every measurement has; nobody can tell which."""
    plan, places = PLANS["cuda", "full"], set()
    for _ in range(60):
        done: list[int] = []

        class Scripted(Bench):
            def __init__(self) -> None:
                self.first, self.case = None, Case(name="any", params={})
                problem: Any = SimpleNamespace(variants=lambda _: [1, 2, 3])
                self.grading: Any = SimpleNamespace(problem=problem)
                self.loan: Any = SimpleNamespace(layout=SimpleNamespace(sets=[None] * 2))
                self._odd = 1 + secrets.randbelow(plan.least_rounds - 1)

            def round(self, index: int, order: list[int] | None = None) -> Sample:
                done.append(index)  # noqa: B023
                return Sample(5000, 5000) if index >= ODD else honest()

        timing = measure(Scripted().next, plan, CALLS, True, False)
        assert timing.rounds == len(done) - 2
        assert max(timing.round_us) < 5000
        places.add(done.index(ODD))
        assert done.count(ODD + 1) == 1
    assert len(places) == plan.least_rounds - 1


def test_on_a_cpu_a_round_is_as_long_as_planned(write_problem: WriteProblem) -> None:
    problem = write_problem()
    case, template = of_size(problem, 10)
    assert calls_per_round(problem, case, template, "cpu") == PLANS["cpu", "full"].most_calls


@pytest.mark.parametrize(
    ("unit", "flops", "heavy"),
    [("tensor", 3e9, True), ("tensor", 2e9, False), ("fp32", 9e9, False)],
)
def test_heavy_is_what_waits_for_tensor_cores(
    h100: None, unit: str, flops: float, heavy: bool
) -> None:
    problem: Any = SimpleNamespace(
        spec=SimpleNamespace(cost=SimpleNamespace(unit=unit)),
        bytes=lambda _: 1e7,  # as long as 2.3e9 operations of tensor cores
        flops=lambda case: flops * case,
        cases=lambda *asked: [1, 0, 0] if asked == ("benchmark", "cuda") else [],
    )
    case: Any = 1
    assert is_heavy(problem, case) is heavy
    assert tensor_bound_share(problem) == (1 / 3 if heavy else 0)


def test_a_report_has_the_wider_interval_of_heavy_cases(
    write_problem: WriteProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("grader.judge.grade")  # not the function of that name
    monkeypatch.setattr(module, "tensor_bound_share", lambda _: 1.0)
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    record = Record()
    record.cases = [benchmark_case()]
    submission = Submission.read(path, 10_000)
    sandbox = ProcessSandbox()
    report = module._report(
        module.GradingRequest(write_problem(), submission, sandbox, "cuda", True, "full", print),
        1,
        record,
    )
    assert report.ranked
    assert report.score_ci_us == pytest.approx((40 * 0.9955, 40 * 1.0045))


# --- the chip's own clock


def test_a_time_has_the_clock_of_each_round_that_counts() -> None:
    held_up = Sample(1000, 1000, "thermal limit", 1700.0)
    counts = [Sample(1000, 1000, None, 1979.0 + i) for i in range(PLAN.least_rounds)]
    assert timed(held_up, *counts).round_mhz == [s.sm_mhz for s in counts]


def test_where_one_round_has_no_clock_none_is_told() -> None:
    samples = [Sample(1000, 1000, None, 1979.0), Sample(1000, 1000)]
    timing = timed(*samples)
    assert timing.round_mhz == []
    assert timing.rounds == PLAN.least_rounds


def test_a_sample_has_the_clock_of_its_round() -> None:
    class Scripted(Bench):
        def __init__(self) -> None:
            self.grading: Any = SimpleNamespace(ranks=False)
            self.loan: Any = SimpleNamespace(device="cpu")
            self.overhead, self.is_heavy = Overhead(), False
            self._is_sudden = self._was_blind = False

        def bracket(self, index: int, order: list[int] | None = None) -> Bracket:
            return Bracket(4, 400.0, 400.0, 0.0, 1979.5)

    assert Scripted().round(1) == Sample(100.0, 100.0, None, 1979.5)


@pytest.mark.parametrize(
    ("cycles", "ns", "mhz"),
    [
        (200_000, 100_000, 2000),
        (200_000, 0, None),  # the GPU's own time did not tick
        (200_000, -5, None),
        (199_999, 100_000, None),  # ended by the number of looks
        (-7, 100_000, None),
        (10**12, 100_000, None),
        (200_000, 10**9, None),
    ],
)
def test_a_count_that_cannot_be_is_no_clock(cycles: int, ns: int, mhz: float | None) -> None:
    from grader.judge.gpu.sm_clock_kernel import mhz_of

    assert mhz_of(cycles, ns) == mhz


# --- what is scored, and what is ranked


def benchmark_case(**changes: Any) -> CaseResult:
    fields: dict[str, Any] = {
        "name": "square",
        "kind": "benchmark",
        "params": {},
        "status": "passed",
        "time_us": 40.0,
        "ci_us": (39.95, 40.05),
        "round_us": [40.0] * 6,
        "converged": True,
        "baseline_us": {"eager": 80.0},
    }
    return CaseResult.model_validate(fields | changes)


def scored(
    report: Callable[..., Report],
    effort: Effort,
    *cases: CaseResult,
    heavy_share: float = 0,
    unseen: Sequence[str] = (),
) -> Report:
    bare = report(cases=list(cases), score_us=None, score_ci_us=None, speedup={}, ranked=False)
    return score.scored(bare, effort, heavy_share, unseen)


def test_a_score_is_the_geometric_mean_of_the_benchmarks(
    make_report: Callable[..., Report],
) -> None:
    test = CaseResult(name="tiny", kind="test", params={}, status="passed")
    other = benchmark_case(
        name="wide",
        time_us=90.0,
        ci_us=(89.9, 90.1),
        round_us=[90.0] * 6,
        baseline_us={"eager": 45.0, "library": 9.0},
    )
    report = scored(make_report, "full", test, benchmark_case(), other)
    assert report.score_us == pytest.approx(60)
    assert report.score_ci_us is not None
    assert report.score_ci_us[0] < 60 < report.score_ci_us[1]
    # `library` was not timed on every case: no mean over all of them.
    assert report.speedup == {"eager": pytest.approx(1.0)}
    assert (report.ranked, report.notes) == (True, [])


@pytest.mark.parametrize(("heavy_share", "share"), [(0, 0.002), (1 / 3, 0.00283), (1, 0.0045)])
def test_a_score_is_known_less_well_the_more_cases_keep_the_tensor_cores_busy(
    make_report: Callable[..., Report], heavy_share: float, share: float
) -> None:
    still = benchmark_case(ci_us=(40.0, 40.0))
    report = scored(make_report, "full", still, heavy_share=heavy_share)
    assert report.score_ci_us == pytest.approx((40 * (1 - share), 40 * (1 + share)), rel=1e-5)
    vague = benchmark_case(ci_us=(38.0, 42.0))
    report = scored(make_report, "full", vague, heavy_share=heavy_share)
    assert report.score_ci_us == pytest.approx((38, 42))


@pytest.mark.parametrize("converged", [False, None])
def test_a_case_that_did_not_settle_is_scored_and_not_ranked(
    make_report: Callable[..., Report], converged: bool | None
) -> None:
    loose = benchmark_case(name="wide", converged=converged)
    report = scored(make_report, "full", benchmark_case(), loose)
    assert not report.ranked
    assert report.score_us == pytest.approx(40)
    assert report.notes == ["not ranked: the time of wide did not settle; submit it again"]


def test_what_was_not_seen_of_a_case_is_not_told_as_a_time_that_did_not_settle(
    make_report: Callable[..., Report],
) -> None:
    cases = [benchmark_case(name=name, converged=False) for name in ("huge", "wide")]
    report = scored(make_report, "full", *cases, unseen=["huge"])
    assert not report.ranked
    assert report.notes == ["not ranked: the time of wide did not settle; submit it again"]
    both = scored(make_report, "full", *cases, unseen=["huge", "wide"])
    assert (both.ranked, both.notes) == (False, [])


def test_a_score_that_is_not_known_well_enough_is_not_ranked(
    make_report: Callable[..., Report],
) -> None:
    vague = benchmark_case(time_us=40.0, round_us=[39.85, 40.15] * 3)
    cases = [vague.model_copy(update={"name": f"case_{i}"}) for i in range(6)]
    assert scored(make_report, "full", *cases).ranked  # 0.375 % each, over the root of six
    report = scored(make_report, "full", *cases[:2])
    assert not report.ranked
    assert report.notes == ["not ranked: the score is known to ±0.27% only; submit it again"]


def test_quick_times_are_scored_and_never_ranked(make_report: Callable[..., Report]) -> None:
    settled = scored(make_report, "quick", benchmark_case())
    loose = scored(make_report, "quick", benchmark_case(converged=False))
    for report in (settled, loose):
        assert (report.ranked, report.notes) == (False, [])
        assert report.score_us == pytest.approx(40)


def test_a_round_that_claims_nothing_can_still_be_scored(
    make_report: Callable[..., Report],
) -> None:
    """A logarithm is taken of what rounds say; a forged zero must not end the judge."""
    timing = timed(*[Sample(200, 200)] * 3, Sample(0, 200), Sample(200, 200))
    loan: Any = SimpleNamespace(device="cpu")
    problem: Any = SimpleNamespace(bytes=lambda _: 1, flops=lambda _: 1)
    grading: Any = SimpleNamespace(problem=problem, device="cpu", record=Record())
    one = Bench.__new__(Bench)
    one.grading, one.case, one.loan = grading, Case(name="any", params={}), loan
    one.cold_us, one.eager_us = None, []
    grading.baselines_us = {}
    clocked = replace(timing, round_mhz=[1979.54] * 5)
    assert bench._result(one, clocked).round_mhz == [1979.5] * 5
    case = bench._result(one, timing)
    assert min(case.round_us) == LEAST_US
    report = scored(make_report, "full", case.model_copy(update={"baseline_us": {"eager": 1.0}}))
    assert report.score_us == pytest.approx(200)


def test_numbers_that_nothing_can_be_made_of_are_our_own_fault(
    write_problem: WriteProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored_badly(*_: object) -> Report:
        raise ZeroDivisionError("float division by zero")

    module = importlib.import_module(
        "grader.judge.grade"
    )  # the package has a function of that name
    monkeypatch.setattr(module, "_report", _failing_once(module._report, scored_badly))
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    submission = Submission.read(path, 10_000)
    report = grade(write_problem(), submission, sandbox=ProcessSandbox(), device="cpu")
    assert report.verdict is Verdict.JUDGE_ERROR
    assert "ZeroDivisionError" in report.reason


def _failing_once(
    real: Callable[..., Report], failing: Callable[..., Report]
) -> Callable[..., Report]:
    tries = iter([failing, real])
    return lambda *arguments: next(tries)(*arguments)


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
    assert small.calls_per_round == plan.most_calls
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


def test_after_a_wrong_replay_no_inputs_come_again() -> None:
    asked: list[int] = []

    class Scripted(Bench):
        def __init__(self) -> None:
            self.grading: Any = SimpleNamespace(device="cpu", record=Record())
            self.case: Any = SimpleNamespace(name="small")
            self.graph, self.first, self.late = True, None, None
            self._odd, self._is_sudden = 2, False
            self.grading.problem = SimpleNamespace(variants=lambda _: [1])
            self.loan: Any = SimpleNamespace(layout=SimpleNamespace(sets=[None] * 2))

        def round(self, index: int, order: list[int] | None = None) -> Sample:
            asked.append(index)
            if self.graph:
                raise SubmissionFault(Fault(Verdict.WRONG_ANSWER, "as if the replay were stale"))
            return honest()

    bench = Scripted()
    bench.warm_up()
    assert not bench.graph
    assert "timed eagerly" in bench.grading.record.notes[0]
    measure(bench.next, PLAN, CALLS, bench.graph, True)
    assert len(asked) > PLAN.least_rounds + 1
    assert len(set(asked)) == len(asked)
    assert asked.count(ODD) == 1


@pytest.mark.parametrize(
    ("delays_us", "is_for_gates"),
    [([0], False), ([1900, 1900], True), ([1900, 20], False), ([500], False)],
)
def test_a_graph_that_holds_up_its_inputs_does_not_wait_at_the_gate(
    monkeypatch: pytest.MonkeyPatch, delays_us: list[float], is_for_gates: bool
) -> None:
    """One with branches does, and an honest one shall not pay for it. Once may be chance."""
    left = list(delays_us)

    class Scripted(Bench):
        def __init__(self) -> None:
            limits = SimpleNamespace(call_s=1)
            problem = SimpleNamespace(spec=SimpleNamespace(limits=limits))
            self.grading: Any = SimpleNamespace(
                device="cuda", ranks=True, problem=problem, session=None
            )
            self.loan: Any = SimpleNamespace(device="cpu", layout=SimpleNamespace(sets=[None] * 4))
            self.overhead, self.is_heavy = Overhead(publish_us=300), False
            self.lookout, self.first, self.late = None, None, None
            self.gate = self.captures = True
            self.graph = self._holds_up = self._is_sudden = self._was_blind = False

        def bracket(self, index: int, order: list[int] | None = None) -> Bracket:
            delay_us = 0.0 if order is not None else left.pop(0)
            return Bracket(4, 400.0, 400.0, 300 + delay_us)

    monkeypatch.setattr("grader.judge.benchmark.capture", lambda *_: True)
    one = Scripted()
    one.warm_up()
    assert not left
    assert one.is_for_gates is is_for_gates


def test_what_compiles_is_awaited_when_a_case_is_laid_out_and_before_it_is_lent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the judge lays out is its own; what the runner does then would be timed beside them."""
    did: list[str] = []
    laid = SimpleNamespace(
        warm_up=lambda: did.append("warm up"), release=lambda: did.append("release")
    )
    loan = SimpleNamespace(close=lambda: did.append("close"))
    grading: Any = SimpleNamespace(
        code=SimpleNamespace(inputs=lambda *_: {}), master=1, problem=None, device="cuda",
        effort="full", expect_device_memory=lambda: did.append("memory"),
        finish_precompiling=lambda: did.append("await"), lend=lambda _: did.append("lend"),
    )  # fmt: skip
    monkeypatch.setattr(bench, "calls_per_round", lambda *_: 4)
    monkeypatch.setattr(bench, "Loan", lambda *_: loan)

    def lay_out(*_: Any) -> Any:
        did.append("lay out")
        return laid

    monkeypatch.setattr(bench, "Bench", lay_out)
    with bench.opened(grading, Case(name="tiny", params={})):
        did.append("rounds")
    order = ["lay out", "await", "lend", "warm up", "rounds", "memory", "release", "close"]
    assert did == order


class Paced(Bench):
    """Rounds of four calls that take as long as they are told to and claim what they like; with
    what its late inputs were aimed at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.us, self.claims_us, self.is_blind = 100.0, 100.0, False
        self.rounds: list[int] = []
        self.aimed_us: list[float | None] = []
        monkeypatch.setattr(bench, "run_round", self._take)
        monkeypatch.setattr(bench, "capture", lambda *_: True)
        limits = SimpleNamespace(call_s=1)
        problem = SimpleNamespace(spec=SimpleNamespace(limits=limits))
        self.grading: Any = SimpleNamespace(
            device="cuda", ranks=True, problem=problem, session=None, code=None, record=Record()
        )
        self.grading.meetings, self.grading.explained = 0, []
        self.grading.bursts = self.grading.lost_bursts = 0
        self.case: Any = SimpleNamespace(name="tiny")
        layout = SimpleNamespace(sets=[None] * 4)
        self.loan: Any = SimpleNamespace(device="cpu", layout=layout, fill=lambda *_: None)
        self.answers: Any = SimpleNamespace(compute=lambda: None)
        self.quick: Any = SimpleNamespace(doubtful=lambda: (set(), []))
        self.overhead, self.is_heavy = Overhead(), False
        self.lookout: Any = SimpleNamespace(
            was_blind=lambda _: self.is_blind,
            first_unfinished=list,
            has_begun=lambda _: False,
            side_by_side=lambda: False,
            meetings=lambda: 0,
            kept_bursts=3,
            lost_bursts=1,
        )
        self.late: Any = SimpleNamespace(
            withhold=lambda _, call_us, *__: self.aimed_us.append(call_us),
            put_back=lambda: None,
            were_in_time=lambda _: set(),
            written={},
            tally=SimpleNamespace(wrong=0),
        )
        self.gate = self.captures = self.graph = True
        self.meetings = 0
        self._holds_up = self._is_sudden = self._was_blind = False
        self._vouched_us = self._least_us = math.inf
        self.first, self._odd = None, 5

    def inputs(self, index: int, i: int, *which: str) -> Values:
        return {}

    def bracket(self, index: int, order: list[int] | None = None) -> Bracket:
        self.rounds.append(index)
        return super().bracket(index, order)

    def _take(self, _: Any, __: Any, order: list[int], *___: Any) -> Bracket:
        if len(self.aimed_us) < len(self.rounds):
            self.aimed_us.append(None)
        calls = len(order)
        return Bracket(calls, self.claims_us * calls, self.us * calls, 0)

    def _expect_right(self, *_: Any) -> None:
        pass


def test_late_inputs_are_aimed_by_the_clock_outside_and_never_by_a_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Paced(monkeypatch)
    one.claims_us = 0.0
    one.warm_up()
    assert one.rounds == [-10, -11, 0]
    assert one.aimed_us == [None] * 3, "a single call tells no pace"
    assert one.first is not None, "it counts"
    for us, claims_us in (120.0, 1e6), (95.0, 0.0), (110.0, 5.0):
        one.us, one.claims_us = us, claims_us
        assert one.round(len(one.rounds)).complaint is None
    one.us = 1.0
    one.round(ODD)
    assert one.aimed_us[3:] == [pytest.approx(us * PACE_SHARE) for us in (100, 100, 95, 95)]
    one.us = 100.0
    assert one.round(9).complaint is None
    assert one.aimed_us[-1] == pytest.approx(95 * PACE_SHARE), "other inputs may take less"


def test_a_round_faster_than_what_its_late_inputs_were_aimed_at_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Paced(monkeypatch)
    one.warm_up()
    one.us = 100 * SUDDEN_SHARE + 1
    assert one.round(1).complaint is None
    one.us = 50.0
    assert one.round(2).complaint == "its calls were much faster than was known before"
    assert one.round(3).complaint is None, "now they are looked at as such"


def test_a_round_that_was_not_watched_neither_counts_nor_tells_a_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Paced(monkeypatch)
    one.warm_up()
    one.us, one.is_blind = 95.0, True
    assert one.round(1).complaint == "the judge could not watch"
    one.us, one.is_blind = 100.0, False
    assert one.round(2).complaint is None
    assert one.aimed_us[-2:] == [100 * PACE_SHARE] * 2


def test_until_a_round_was_watched_none_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to aim late inputs by, so the first that was has none; and no other."""
    one = Paced(monkeypatch)
    one.is_blind = True
    one.warm_up()
    assert one.next(0).complaint == "the judge could not watch"
    assert one.round(7).complaint == "the judge could not watch"
    one.is_blind = False
    assert one.round(1).complaint is None
    assert one.round(2).complaint is None
    assert one.aimed_us == [None] * 5 + [100 * PACE_SHARE]


def test_who_works_ahead_in_the_first_round_alone_gains_next_to_nothing() -> None:
    """It has no late inputs, which is no secret; the middle of six has a neighbour instead."""
    others = [99.95, 100.05, 99.98, 100.02, 100.0] * 8
    samples = [Sample(us, us) for us in (50.0, *others)]
    timing = measure(samples.__getitem__, PLANS["cuda", "full"], CALLS, True, True)
    assert timing.fault is None
    assert timing.rounds > 6, "it makes the interval wide"
    assert timing.time_us >= 99.95


def test_a_replay_that_was_wrong_tells_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those before it: what does nothing is fast."""
    one = Paced(monkeypatch)
    one.gate, one.us = False, 1.0

    def look(*_: Any) -> None:
        if one.graph and one.rounds[-1] in wrong:
            one.us = 100.0
            raise SubmissionFault(Fault(Verdict.WRONG_ANSWER, "nothing was written"))

    monkeypatch.setattr(one, "_expect_right", look)
    wrong = {0}
    one.warm_up()
    assert not one.graph
    assert one.rounds[2:] == [0, -14]
    assert one._least_us == 100
    one.round(1)
    assert one.aimed_us[-1] == pytest.approx(100 * PACE_SHARE)
    # Round 0 was right, and its inputs were held up, so there is one more before its time counts.
    wrong = {-13}
    one.graph, one.us, one._least_us = True, 1.0, math.inf
    one.overhead = Overhead(publish_us=-2 * HELD_UP_US)
    one.rounds.clear()
    one.aimed_us.clear()
    one.warm_up()
    assert not one.graph
    assert one.rounds[2:] == [0, -13, -14]
    assert one.aimed_us[3] is not None, "by a replay that may have been wrong, too"
    assert one._least_us == pytest.approx(100 + 2 * HELD_UP_US / 4)


def test_a_warm_up_that_was_slow_until_its_last_round_gives_no_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls that cannot be captured have a round before the first."""
    one = Paced(monkeypatch)
    one.gate = False
    monkeypatch.setattr(bench, "capture", lambda *_: False)
    monkeypatch.setattr(bench, "run_round", slow_in(one, -12))
    one.warm_up()
    assert one.first is None
    assert one.next(0).complaint is None
    assert one.rounds == [-10, -11, -12, 0, 1]


def test_what_follows_a_slow_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its late inputs were aimed by that."""
    one = Paced(monkeypatch)
    monkeypatch.setattr(bench, "run_round", slow_in(one, 0))
    one.warm_up()
    assert one.next(0).complaint is None
    assert one.next(1).complaint == "its calls were much faster than was known before"
    assert one.next(2).complaint is None
    assert one.rounds == [-10, -11, 0, 2, 3]


def slow_in(one: Paced, round_: int) -> Callable[..., Bracket]:
    """Rounds as it takes them, but one of them slow."""

    def take(session: Any, loan: Any, order: list[int], *more: Any) -> Bracket:
        one.us = 500.0 if one.rounds[-1] == round_ else 100.0
        return one._take(session, loan, order, *more)

    return take


def test_no_round_is_fast_without_a_set_that_went_through_every_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A right answer that is less exact may be faster."""
    thorough: list[bool] = []

    class Scripted(Bench):
        def __init__(self) -> None:
            limits = SimpleNamespace(call_s=1)
            self.grading: Any = SimpleNamespace(
                session=None,
                device="cpu",
                problem=SimpleNamespace(spec=SimpleNamespace(limits=limits)),
            )
            self.overhead = Overhead()
            self.case: Any = None
            layout = SimpleNamespace(sets=[None] * 4)
            self.loan: Any = SimpleNamespace(layout=layout, fill=lambda *_: None)
            self.answers: Any = SimpleNamespace(compute=lambda: None)
            self.lookout = self.late = None
            self.graph = self.gate = False
            self._vouched_us = self._least_us = math.inf

        def inputs(self, index: int, i: int, *which: str) -> Values:
            return {}

        def _expect_right(self, chosen: list[int], is_thorough: bool, doubt: Any = None) -> None:
            thorough.append(is_thorough)
            if wrong:
                raise SubmissionFault(Fault(Verdict.WRONG_ANSWER, "too coarse"))

    def run(*outside_us: float) -> list[bool]:
        thorough.clear()
        for us in outside_us:
            bracket = Bracket(4, us, us, 0)
            monkeypatch.setattr("grader.judge.benchmark.run_round", lambda *_, b=bracket: b)
            bench.bracket(1)
        return list(thorough)

    monkeypatch.setattr("grader.judge.benchmark.secrets.randbelow", lambda _: 1)  # no luck
    wrong = False
    bench = Scripted()
    assert run(1000, 1100, 996, 994, 999, 990) == [True, False, False, True, False, False]
    assert run(900, 900) == [True, False]
    wrong = True
    for _ in range(2):
        with pytest.raises(SubmissionFault):
            run(1)
        assert thorough == [True]
