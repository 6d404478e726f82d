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
from grader.arena import Layout, arrange
from grader.judge.cases import Values
from grader.judge.environment import measure_ceilings
from grader.judge.loan import Loan, new_arena, set_bytes, wanted
from grader.judge.session import Session
from grader.judge.verdict import Fault
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import Rule, Verdict
from grader.wire import Flag, sealed_memory

CALIBRATION_ROUNDS = 7
SHORTEST_SPIN_US, LONGEST_SPIN_US = 500.0, 20_000.0
CYCLES_PER_US = 1800
"""GPU clock cycles in a microsecond, about; only the length of a calibration depends on it."""
RELATIVE_DOUBT = 0.005
"""Share of the outside time that the outside clock may be wrong by."""
ROUND_DOUBT_US = 450.0
"""Microseconds per round that it may be wrong by besides the spread that calibration has seen.
Honest rounds on an H100 lay -200 to 600 above their claims, at any length: docs/measurements.md."""
COLD_L2 = 3
"""All sets of a round together are at least this many times the L2 cache."""
MEMORY_SHARE = 0.16
"""Share of the device memory that one round's sets may take; the judge holds about three times as
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
    """What a round of one case costs the outside clock besides its calls."""

    cost_us: float = 0.0
    """Publishing, the wire, the GPU's change of context, collecting: the median of some rounds."""
    doubt_us: float = 0.0
    """How far a round's cost was seen above that median, and a margin."""


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


def calibrate(session: Session, problem: Problem, case: Case, template: Values) -> Overhead:
    """Measure rounds over a block as the case will have it, with no submission loaded yet.

    The runner, still ours alone, keeps the GPU busy for about as long as the calls will take, and
    its own events tell how long: what the outside clock saw beyond that is the round's cost.
    """
    calls = calls_per_round(problem, case, template, "cuda")
    sizes = arrange([wanted(problem, case, template)] * calls)
    layout = Layout(sizes.nbytes, sizes.writable_at, [])
    spin_us = min(max(calls * floor_us(problem, case), SHORTEST_SPIN_US), LONGEST_SPIN_US)
    arena = new_arena("cuda", layout.nbytes)
    try:
        lend(session, arena.fd, layout, {"dims": [], "symbol": ""})
        image, snapshot = torch.empty_like(arena.buffer), torch.empty_like(arena.buffer)
        rounds = CALIBRATION_ROUNDS + 1
        costs_us = [
            _spin_cost_us(session, arena.buffer, image, snapshot, layout.writable_at, spin_us)
            for _ in range(rounds)
        ][1:]  # the first one warms up
    finally:
        arena.close()
    cost_us = stats.median(costs_us)
    spread_us = sorted(costs_us)[-2] - cost_us  # the largest of them may be a hiccup
    return Overhead(cost_us, spread_us + ROUND_DOUBT_US)


def _spin_cost_us(
    session: Session,
    block: torch.Tensor,
    image: torch.Tensor,
    snapshot: torch.Tensor,
    writable_at: int,
    spin_us: float,
) -> float:
    """What one round that only spins costs the outside clock beyond the spinning, microseconds."""
    torch.cuda.synchronize()
    start_ns = time.perf_counter_ns()
    block.copy_(image)
    torch.cuda.synchronize()
    request = {"cycles": int(spin_us * CYCLES_PER_US)}
    reply = session.ask("spin", request, 10, "a round of calibration")
    snapshot[writable_at:].copy_(block[writable_at:])
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start_ns - reply.claim_ns) / 1e3


def floor_us(problem: Problem, case: Case) -> float:
    """The least time of one call on this GPU, microseconds, at its measured ceilings."""
    nbytes, flops = problem.bytes(case), problem.flops(case)
    return measure_ceilings().floor_us(nbytes, flops, problem.spec.cost.unit)


def calls_per_round(problem: Problem, case: Case, template: Values, device: str) -> int:
    """How many sets a round has: long enough for the outside clock, enough to keep L2 cold.

    Length is reckoned at the roofline's floor, which no submission can influence: a slower kernel
    only makes its rounds longer.
    """
    plan = PLANS[device]
    if device == "cpu":
        return plan.least_calls
    each_bytes = set_bytes(problem, case, template)
    l2_bytes = torch.cuda.get_device_properties().L2_cache_size
    long_enough = math.ceil(plan.round_us / max(floor_us(problem, case), 0.5))
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
    session: Session, loan: Loan, order: list[int], cost_us: float, graph: bool, limit_s: float
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
    external_us = max(0.0, total_us - cost_us) / calls
    return Sample(reply.claim_ns / 1e3 / calls, external_us)


def capture(session: Session, order: list[int], limit_s: float) -> bool:
    """Whether the runner captured a round into a CUDA graph."""
    reply = session.ask("capture", {"order": order}, limit_s, "capturing a CUDA graph")
    return bool(reply.flags & Flag.GRAPH)


def measure(
    one_round: Callable[[int], Sample],
    plan: Plan,
    calls: int,
    graph: bool,
    doubt_us: float | None,
) -> Timing:
    """Rounds until the median claim is known well enough, and the verdict of the outside clock.

    `one_round(i)` runs round i, checks every output of it, and gives its sample. `doubt_us` is the
    outside clock's doubt per round; None where times are not ranked, and claims are taken as such.
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
    allowed = 0.0 if doubt_us is None else external * (1 - RELATIVE_DOUBT) - doubt_us / calls
    if allowed > claim:
        low, high = allowed, max(high, external)
    return Timing(
        time_us=max(claim, allowed, LEAST_US),
        ci_us=(low, high),
        external_us=external,
        rounds=len(samples),
        calls_per_round=calls,
        converged=stats.is_narrow(claims, plan.relative, plan.least_rounds),
        graph=graph,
        fault=_forged(claim, allowed),
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
