"""How fast is it? Rounds over cold sets, a claim from inside, and the judge's own clock around it.

A round calls each of N independent argument sets once. Fresh inputs are published inside the
bracket of the outside clock, and the clock stops only when the outputs lie in private memory, so
that neither work before "go" nor work after "done" is free. Events recorded beside the submission
are a claim; the time that counts is the larger of the claim and what the outside clock allows.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from grader import stats
from grader.arena import Layout
from grader.judge.cases import Values
from grader.judge.environment import measure_ceilings
from grader.judge.loan import Loan, new_arena, set_bytes
from grader.judge.session import Session
from grader.judge.verdict import Fault
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import Rule, Verdict
from grader.wire import Flag, sealed_memory

CALIBRATION_ROUNDS = 7
RELATIVE_DOUBT = 0.02
"""Share of the outside time that the outside clock may be wrong by."""
ROUND_DOUBT_US = 100.0
"""Microseconds per round that it may be wrong by besides: scheduling, context switches."""
COLD_L2 = 3
"""All sets of a round together are at least this many times the L2 cache."""
MEMORY_SHARE = 0.12
"""Share of the device memory that one round's sets may take; the judge holds about four times as
much: block, image, snapshot, and what the check needs."""
FORGED_SHARE = 0.9
"""A claim below this share of what the outside clock allows is a forgery, not noise."""
FORGED_LEAST_US = 3.0
"""Differences per call below this are within the doubt of any clock outside."""


LEAST_US = 1e-3
"""The clock's own resolution: a forged claim of zero is still a positive number."""


@dataclass(frozen=True)
class Plan:
    """How long to measure: a policy per device, not a knob per submission."""

    round_us: float
    """A round should last this long, so that its constant cost is small beside it."""
    least_calls: int
    most_calls: int
    least_rounds: int
    most_rounds: int
    budget_s: float
    relative: float
    """Stop when the median is known to ± this share of itself."""


PLANS = {
    "cuda": Plan(20_000, 4, 64, 6, 40, 3.0, 0.002),
    "cpu": Plan(0, 2, 2, 3, 6, 0.3, 0.05),
}


@dataclass(frozen=True)
class Overhead:
    """What an empty round costs by the outside clock, measured before the submission is loaded."""

    constant_us: float
    us_per_byte: float
    """Per byte published or collected."""

    def of(self, layout: Layout) -> float:
        """Microseconds that a round over `layout` costs without any call."""
        moved = layout.nbytes + (layout.nbytes - layout.writable_at)
        return self.constant_us + self.us_per_byte * moved


@dataclass(frozen=True)
class Sample:
    """One round, per call, in microseconds."""

    claim_us: float
    external_us: float


@dataclass(frozen=True)
class Timing:
    """What many rounds say; see `grader.report.CaseResult` for the fields' meaning."""

    time_us: float
    ci_us: tuple[float, float]
    external_us: float
    rounds: int
    calls_per_round: int
    converged: bool
    graph: bool
    fault: Fault | None


def calibrate(session: Session, device: str) -> Overhead:
    """Measure empty rounds over a small and a large block, with no submission loaded yet."""
    small, large = (1 << 20, 1 << 32) if device == "cuda" else (1 << 16, 1 << 22)
    points = [(nbytes, _empty_rounds_us(session, device, nbytes)) for nbytes in (small, large)]
    (bytes_a, us_a), (bytes_b, us_b) = points
    slope = max(0.0, (us_b - us_a) / (1.5 * (bytes_b - bytes_a)))
    return Overhead(max(0.0, us_a - slope * 1.5 * bytes_a), slope)


def _empty_rounds_us(session: Session, device: str, nbytes: int) -> float:
    arena = new_arena(device, nbytes)
    layout = Layout(nbytes, nbytes // 2, [])
    image = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    snapshot = torch.empty(nbytes - layout.writable_at, dtype=torch.uint8, device=device)
    lend(session, arena.fd, layout, {"dims": [], "symbol": ""})
    times = []
    for _ in range(CALIBRATION_ROUNDS):
        start_ns = time.perf_counter_ns()
        arena.buffer.copy_(image)
        _synchronise(device)
        session.ask("round", {"order": [], "graph": False}, 10, "an empty round")
        snapshot.copy_(arena.buffer[layout.writable_at :])
        _synchronise(device)
        times.append((time.perf_counter_ns() - start_ns) / 1e3)
    arena.close()
    return stats.median(times)


def calls_per_round(problem: Problem, case: Case, template: Values, device: str) -> int:
    """How many sets a round has: long enough for the outside clock, enough to keep L2 cold.

    Length is reckoned at the roofline's floor, which no submission can influence: a slower kernel
    only makes its rounds longer.
    """
    plan = PLANS[device]
    if device == "cpu":
        return plan.least_calls
    nbytes, flops = problem.bytes(case), problem.flops(case)
    floor_us = measure_ceilings().floor_us(nbytes, flops, problem.spec.cost.unit)
    each_bytes = set_bytes(problem, case, template)
    l2_bytes = torch.cuda.get_device_properties().L2_cache_size
    long_enough = math.ceil(plan.round_us / max(floor_us, 0.5))
    cold_enough = math.ceil(COLD_L2 * l2_bytes / each_bytes) + 1
    room = int(torch.cuda.get_device_properties().total_memory * MEMORY_SHARE) // each_bytes
    return max(plan.least_calls, min(max(long_enough, cold_enough), plan.most_calls, room))


def lend(session: Session, fd: int, layout: Layout, case: dict[str, object]) -> None:
    """Hand a block and its layout to the runner; `case` is what a `.cu` entry is told besides."""
    text = layout.to_json()
    layout_fd = sealed_memory("layout", text)
    try:
        request = {"layout_bytes": len(text), **case}
        session.ask("lend", request, 60, "taking the lent memory", fds=(fd, layout_fd))
    finally:
        os.close(layout_fd)


def run_round(
    session: Session, loan: Loan, order: list[int], overhead: Overhead, graph: bool, limit_s: float
) -> Sample:
    """One bracketed round; leaves the snapshot of all outputs in the loan."""
    loan.settle()  # what filled the image is not the round's
    start_ns = time.perf_counter_ns()
    loan.publish()
    request = {"order": order, "graph": graph}
    reply = session.ask("round", request, limit_s, f"a round of {len(order)} calls")
    loan.collect()
    total_us = (time.perf_counter_ns() - start_ns) / 1e3
    calls = len(order)
    external_us = max(0.0, total_us - overhead.of(loan.layout)) / calls
    return Sample(reply.claim_ns / 1e3 / calls, external_us)


def capture(session: Session, order: list[int], limit_s: float) -> bool:
    """Whether the runner captured a round into a CUDA graph."""
    reply = session.ask("capture", {"order": order}, limit_s, "capturing a CUDA graph")
    return bool(reply.flags & Flag.GRAPH)


def measure(
    one_round: Callable[[int], Sample], plan: Plan, calls: int, graph: bool, ranked: bool
) -> Timing:
    """Rounds until the median claim is known well enough, and the verdict of the outside clock.

    `one_round(i)` runs round i, checks every output of it, and gives its sample.
    """
    samples: list[Sample] = []
    end = time.monotonic() + plan.budget_s
    while len(samples) < plan.most_rounds:
        samples.append(one_round(len(samples)))
        claims = [s.claim_us for s in samples]
        if stats.is_narrow(claims, plan.relative, plan.least_rounds):
            break
        if len(samples) >= plan.least_rounds and time.monotonic() >= end:
            break
    external = stats.median([s.external_us for s in samples])
    claim = stats.median(claims)
    low, high = stats.median_interval(claims)
    allowed = external * (1 - RELATIVE_DOUBT) - ROUND_DOUBT_US / calls
    fault = _forged(claim, allowed) if ranked else None
    if allowed > claim and ranked:
        low, high = allowed, max(high, external)
    return Timing(
        time_us=max(claim, allowed, LEAST_US) if ranked else max(claim, LEAST_US),
        ci_us=(low, high),
        external_us=external,
        rounds=len(samples),
        calls_per_round=calls,
        converged=stats.is_narrow(claims, plan.relative, plan.least_rounds),
        graph=graph,
        fault=fault,
    )


def _forged(claim_us: float, allowed_us: float) -> Fault | None:
    if claim_us >= FORGED_SHARE * allowed_us or allowed_us - claim_us <= FORGED_LEAST_US:
        return None
    return Fault(
        Verdict.REJECTED,
        f"it claims {claim_us:.1f} µs a call; the clock outside saw at least {allowed_us:.1f} µs",
        Rule.TIME_CLAIM,
    )


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
