"""From many rounds to one time: reported times, held against the judge's own clock.

Events recorded beside the submission are a report. The time that counts is the larger of the report
and what the judge measured, less the limit of what the judge cannot know.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from grader import stats
from grader.judge.timing.plan import POLICY, Plan
from grader.judge.verdict import Fault
from grader.report import Rule, Verdict


@dataclass(frozen=True)
class Sample:
    """One round, microseconds per call."""

    reported_us: float
    measured_us: float
    discard: str | None = None
    """Why the round does not count; None where it does."""
    sm_mhz: float | None = None
    """The SM clock after it, where it is known."""


@dataclass(frozen=True)
class Timing:
    """The time of a case; see `grader.report.CaseResult` for the fields' meaning."""

    time_us: float
    ci_us: tuple[float, float]
    external_us: float
    round_us: list[float]
    """The reported time of each round that counts."""
    round_mhz: list[float]
    """The SM clock after each of them; empty where one is unknown."""
    discarded: dict[str, int]
    """Rounds left out, by reason."""
    calls_per_round: int
    converged: bool
    graph: bool
    fault: Fault | None

    @property
    def rounds(self) -> int:
        """How many rounds count."""
        return len(self.round_us)


def measure(
    one_round: Callable[[int], Sample],
    plan: Plan,
    calls: int,
    graph: bool,
    ranks: bool,
) -> Timing:
    """Run rounds until the reported time is known well enough, and hold it against the judge's
    clock.

    `one_round(i)` runs round i and checks all its outputs. Times that do not rank are taken as
    reported. Otherwise a score is no more than the limit below what was measured, and a report far
    below what is beyond doubt is a forgery. Rounds with a reason to leave them out prove none: the
    judge was held up itself, and its time of them is too long. The middle measured time counts, so
    that cheating in a few rounds changes nothing. Where it exceeds the report, rounds go on: an
    honest submission was unlucky, and a forger gains no more than the limit.
    """
    samples: list[Sample] = []
    discarded: Counter[str] = Counter()
    end = time.monotonic() + plan.budget_s
    while len(samples) < plan.most_rounds:
        sample = one_round(len(samples) + discarded.total())
        if sample.discard is not None and discarded.total() < plan.most_discarded:
            discarded[sample.discard] += 1
            continue
        samples.append(sample)
        reports = [s.reported_us for s in samples]
        reported, (low, high) = stats.estimate(reports)
        all_measured = sorted(s.measured_us for s in samples)
        measured = all_measured[len(all_measured) // 2]
        allowed, forged = 0.0, None
        if ranks:
            allowed = measured - limit_us(measured, calls)
            watched = [s.measured_us for s in samples if s.discard is None]
            if len(watched) >= plan.least_rounds:
                least = min(allowed, min(watched) - POLICY.most_doubt_us / calls)
                forged = _forged(reported, least)
        unlucky = allowed > reported and forged is None
        agrees = allowed <= reported * (1 + POLICY.agree_share)
        if stats.is_narrow(reports, plan.relative, plan.least_rounds) and not unlucky:
            break
        is_known = stats.is_narrow(reports, plan.settled, plan.least_rounds)
        overtime_s = 0.0 if is_known and (agrees or forged is not None) else plan.overtime_s
        if len(samples) >= plan.least_rounds and time.monotonic() >= end + overtime_s:
            break
    if allowed > reported:
        # An interval that ranks spans no more than the clocks differ; a wider one ties with slower
        # kernels.
        low, high = allowed, max(high, allowed * (1 + POLICY.agree_share) if agrees else measured)
    clocks = [s.sm_mhz for s in samples if s.sm_mhz is not None]
    return Timing(
        time_us=max(reported, allowed, POLICY.least_us),
        ci_us=(max(low, POLICY.least_us), max(high, POLICY.least_us)),
        external_us=measured,
        round_us=reports,
        round_mhz=clocks if len(clocks) == len(samples) else [],
        discarded=dict(discarded),
        calls_per_round=calls,
        converged=stats.is_narrow(reports, plan.settled, plan.least_rounds)
        and agrees
        and not any(s.discard for s in samples),
        graph=graph,
        fault=forged,
    )


def believable(
    timing: Timing, long_round_us: Callable[[float], float]
) -> tuple[Timing, str | None]:
    """The reported times of a CPU; or the judge's own where the report is far below them, and why.

    Starting a round takes longer than a short call. So short rounds are repeated as long ones, and
    the report is believed if one of them bears it out. `long_round_us(about_us)` is the judge's
    time of one call, which takes `about_us`, in a round that is long enough for it.
    """
    reported_us, own_us = timing.time_us, [timing.external_us]
    is_short = timing.external_us * timing.calls_per_round < POLICY.long_round_us
    if reported_us < POLICY.believed_share * timing.external_us and is_short:
        for _ in range(POLICY.long_rounds):
            own_us.append(long_round_us(own_us[-1]))
        own_us = own_us[1:]
    if reported_us >= POLICY.believed_share * min(own_us):
        return timing, None
    own = stats.median_estimate(own_us)
    why = f"it measured {own.value:,.1f} µs a call, and the runner reported {reported_us:,.1f} µs"
    judged = replace(
        timing, time_us=own.value, ci_us=own.interval, external_us=own.value, round_us=own_us
    )
    return judged, why


def limit_us(measured_us: float, calls: int) -> float:
    """Microseconds per call by which a score may lie below the measured time."""
    limit = max(POLICY.limit_us, POLICY.limit_share * measured_us)
    return max(0.0, limit - POLICY.slack_us / calls)


def _forged(reported_us: float, least_us: float) -> Fault | None:
    if (
        reported_us >= POLICY.forged_share * least_us
        or least_us - reported_us <= POLICY.forged_least_us
    ):
        return None
    return Fault(
        Verdict.REJECTED,
        f"it claims {reported_us:.1f} µs a call; the clock outside saw at least {least_us:.1f} µs",
        Rule.TIME_CLAIM,
    )
