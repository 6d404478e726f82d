"""How fast is it? Rounds over cold sets, a claim from inside, and the judge's own clock around it.

Events recorded beside the submission are a claim; the time that counts is the larger of the claim
and what the outside clock allows. That runs from when a round's inputs are all there until its
outputs are (`round`), so that neither work before the one nor work after the other is
free.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from grader import stats
from grader.arena import Slot, arrange
from grader.arena.layout import ITEM_BYTES
from grader.judge.gpu.environment import measure_ceilings
from grader.judge.integrity.call_order import Lookout
from grader.judge.memory.argument_sets import item_bytes, wanted
from grader.judge.memory.shared_block import KEPT, Block
from grader.judge.problem_code import Values
from grader.judge.record import Effort
from grader.judge.session import Session
from grader.judge.timing.round import Bracket, Starts, capture, lend, publish, run_round
from grader.judge.verdict import Fault
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import Rule, Verdict
from grader.sandbox.base import SandboxError

GAUGE_ROUNDS, PUBLISH_ROUNDS = 12, 7
IDLE_CALLS, IDLE_WORDS = 8, 1 << 23
"""Calls of an idle round, and words of 8 bytes that each reads, and as many that it writes: long
enough to be watched as any other is. A round costs the same whatever its calls are."""
LIMIT_US, LIMIT_SHARE = 3.0, 0.02
"""What nobody may gain per call: the larger of so much, and this share of the time."""
SLACK_US = 30.0
"""Microseconds per round that a round may cost less than the least of the idle ones did, and that
the clock outside therefore does not let pass: a kernel's last few outputs may be in no probe. Of
900 honest rounds of 23 cases none cost more than 6 µs less, but for one case of attention: 29."""
DOUBT_US = {True: 50.0, False: 200.0}
"""Microseconds per round by which the middle one of honest rounds may lie above its claim:
of those that wait at a gate, which the GPU starts by itself, and of those that a message starts, by
processors that are slow after milliseconds of waiting (docs/experiments.md). A round has so many
calls that the limit leaves room for it; fewer where the device's memory asks for that."""
MOST_DOUBT_US = 360.0
"""The same of the shortest of honest rounds at the very worst, on a noisy machine: a claim is
called forged beyond this, and no sooner."""
LEAST_ROUND_US = 1500.0
"""A round of short calls has so many that it lasts this long at the roofline's floor: what a graph
takes to start is in its claim, and is to be a small part of it."""
CHANGES_US = 100.0
"""Publishing that takes so much longer than it should was disturbed. Whoever works meanwhile has
the GPU change to him and back: by estimate 0.2 ms, since a round that costs 155 µs besides its
calls has one change in it. Without that, the same copy takes up to 1 % longer from one block to
another."""
LEAST_CALLS = 4
COLD_L2 = 3
"""All sets of a round together are at least this many times the L2 cache."""
MEMORY_SHARE = 0.6
"""Share of the device memory that a round's sets may take, with all that the judge holds of them;
the rest is for what the check needs, and for the submission."""
AGREE_SHARE = 0.005
"""Where the outside clock allows no less than the claim and this share more, nothing has settled:
an honest kernel had bad luck and shall not rank by it, and a forger shall not rank at all. A round
that looks faster than others by no more than this needs no set that went through every gate."""
FORGED_SHARE = 0.9
"""A claim below this share of what is beyond all doubt is a forgery, not noise."""
FORGED_LEAST_US = 3.0
"""Differences per call below this are within the doubt of any clock outside."""
LEAST_US = 1e-3
"""The clock's own resolution: a forged claim of zero is still a positive number."""


@dataclass(frozen=True)
class Plan:
    """How long to measure: a policy per device, not a knob per submission."""

    most_calls: int
    least_rounds: int
    most_rounds: int
    budget_s: float
    relative: float
    """Stop when the time is known to ± this share of itself."""
    settled: float
    """When rounds or budget have ended, a time known to ± this share of itself will do. What
    counts is how well the score is known: `grader.judge.grade.KNOWN_SHARE`."""
    late_s: float = 0.0
    """How much longer than the budget to go on where that is not reached."""

    most_discarded: int = 0
    """Rounds that may be left out because the chip was held back."""


PLANS: dict[tuple[str, Effort], Plan] = {
    ("cuda", "full"): Plan(64, 6, 40, 4.0, 0.002, 0.005, late_s=4.0, most_discarded=10),
    ("cuda", "quick"): Plan(16, 5, 12, 0.3, 0.01, 0.01),
    ("cpu", "full"): Plan(2, 3, 20, 0.3, 0.05, 0.05),
    ("cpu", "quick"): Plan(2, 2, 20, 0.1, 0.05, 0.05),
}


@dataclass(frozen=True)
class Overhead:
    """What a round costs the outside clock besides its calls."""

    publish_us: float = math.inf
    """What publishing took while nothing could disturb it; infinite where unknown."""
    cost_us: float = 0.0
    """The GPU's change from our work to the runner's, the launch, the probe: the least that was
    seen. Of rounds that a message starts, no more is taken off: nobody has to wait for it."""

    def of_rounds(self, times: float) -> Overhead:
        """The same of rounds that publish so many times as much."""
        return replace(self, publish_us=self.publish_us * times)

    def delay_us(self, bracket: Bracket) -> float:
        """By how much the inputs of a round came later than they should; 0 for the usual."""
        delay_us = bracket.publish_us - self.publish_us
        return delay_us if delay_us >= CHANGES_US else 0.0

    def outside_us(self, bracket: Bracket) -> float:
        """Time of all calls by the outside clock. A submission that works while its inputs are
        being published slows that down: then the delay is its time too."""
        return max(0.0, bracket.outside_us + self.delay_us(bracket) - self.cost_us)


@dataclass(frozen=True)
class Sample:
    """One round, per call, in microseconds."""

    claim_us: float
    external_us: float
    complaint: str | None = None
    """Why the round does not count, where it does not."""
    sm_mhz: float | None = None
    """The multiprocessors' clock around it, where that is read."""


@dataclass(frozen=True)
class Timing:
    """What many rounds say; see `grader.report.CaseResult` for the fields' meaning."""

    time_us: float
    ci_us: tuple[float, float]
    external_us: float
    round_us: list[float]
    """The claim of each round that counts."""
    round_mhz: list[float]
    """The multiprocessors' clock around each of them; empty where one was not read."""
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


def gauge(session: Session) -> float:
    """Microseconds that a graph's round costs besides its calls, the least that was seen. With this
    very runner, before it loads anything: it is still ours alone, and its events are honest.

    For each runner anew: other work on the machine, and the processor that a process happens to be
    on, change that by more than a submission could gain.
    """
    return min(bracket.rest_us for bracket in idle_rounds(session, GAUGE_ROUNDS))


def idle_rounds(session: Session, rounds: int) -> list[Bracket]:
    """Rounds of a runner that has loaded nothing, whose calls read some memory and write some; the
    first, which warms up, is left out. Raises `SandboxError` where nothing can be captured: a
    submission may be the reason for that later, but not yet."""
    words = Slot(0, "int64", (IDLE_WORDS,), (1,))
    layout = arrange([[(False, words), (True, words)]] * IDLE_CALLS)
    block = Block(layout, ITEM_BYTES[words.dtype], "cuda", KEPT)
    try:
        session.ask("idle", {}, 10, "calibration")
        lend(session, block, {"shape": None, "dims": [], "symbol": ""})
        order = list(range(IDLE_CALLS))
        if not capture(session, order, 10):
            raise SandboxError(
                "the runner cannot capture a CUDA graph, not even of our own calls, so no time "
                "could rank; check that driver, torch and cuda-bindings are of one CUDA version"
            )
        lookout = Lookout.over(block)
        found = [
            run_round(session, block, order, Starts(True, True), 10, lookout)
            for _ in range(rounds + 1)
        ]
        return found[1:]
    finally:
        block.close()


def publishing_us(problem: Problem, case: Case, template: Values) -> float:
    """How long publishing a round of a case takes, microseconds, while nobody disturbs it."""
    calls = calls_per_round(problem, case, template, "cuda")
    layout = arrange([wanted(problem, case, template)] * calls)
    block = Block(layout, item_bytes(problem, case), "cuda")
    lookout = Lookout.over(block)
    try:
        times_us = []
        for _ in range(PUBLISH_ROUNDS + 1):
            publish(block, list(range(calls)), lookout)
            times_us.append(block.publish_us())
        return stats.median(times_us[1:])
    finally:
        block.close()


def is_heavy(problem: Problem, case: Case) -> bool:
    """Whether a case's work drives the chip to its power limit: tensor cores, and not memory, are
    what it waits for at best."""
    if problem.spec.cost.unit != "tensor":
        return False
    ceilings = measure_ceilings()
    moving_s = problem.bytes(case) / ceilings.bytes_per_s
    return problem.flops(case) / ceilings.tensor_per_s > moving_s


def floor_us(problem: Problem, case: Case) -> float:
    """The least time of one call on this GPU, microseconds, at its measured ceilings."""
    nbytes, flops = problem.bytes(case), problem.flops(case)
    return measure_ceilings().floor_us(nbytes, flops, problem.spec.cost.unit)


def calls_per_round(
    problem: Problem,
    case: Case,
    template: Values,
    device: str,
    effort: Effort = "full",
    sharing: int = 1,
    gate: bool = True,
) -> int:
    """How many sets a round has, that waits at a gate or not: enough for the outside clock, for a
    claim that is little but calls, and to keep L2 cold.

    What is enough is reckoned at the roofline's floor, which no submission can influence.
    """
    plan = PLANS[device, effort]
    if device == "cpu":
        return plan.most_calls
    layout = arrange([wanted(problem, case, template)])
    properties = torch.cuda.get_device_properties()
    least_us = floor_us(problem, case)
    needed = (DOUBT_US[gate] + SLACK_US) / max(LIMIT_US, LIMIT_SHARE * least_us)
    long_enough = LEAST_ROUND_US / least_us
    cold_enough = math.ceil(COLD_L2 * properties.L2_cache_size / layout.nbytes) + 1
    tail_bytes = layout.nbytes - layout.writable_at
    image_bytes = layout.writable_at if item_bytes(problem, case) else layout.nbytes
    held_bytes = layout.nbytes + image_bytes + 2 * tail_bytes  # with the snapshot and the answers
    room = int(properties.total_memory * MEMORY_SHARE / sharing) // held_bytes
    wanted_calls = min(max(math.ceil(max(needed, long_enough)), cold_enough), plan.most_calls)
    return max(LEAST_CALLS, min(wanted_calls, room))


def measure(
    one_round: Callable[[int], Sample],
    plan: Plan,
    calls: int,
    graph: bool,
    ranks: bool,
) -> Timing:
    """Rounds until the claim is known well enough, and the verdict of the outside clock.

    `one_round(i)` runs round i, checks every output of it, and gives its sample. Unless the times
    are to rank, claims are taken as such. Else a score is given no more than `LIMIT_US` or
    `LIMIT_SHARE` below what the outside clock saw, and a claim far below what is beyond doubt is a
    forgery.

    Of what the outside clock saw, the middle one counts: who cheats in some rounds only, where he
    is seen less likely, must do so in more than half of them. Where that says a little more than is
    claimed, rounds go on: an honest submission had bad luck, and another one gains by more rounds
    no more than the limit.
    """
    samples: list[Sample] = []
    discarded: Counter[str] = Counter()
    end = time.monotonic() + plan.budget_s
    while len(samples) < plan.most_rounds:
        sample = one_round(len(samples) + discarded.total())
        if sample.complaint is not None and discarded.total() < plan.most_discarded:
            discarded[sample.complaint] += 1
            continue
        samples.append(sample)
        claims = [s.claim_us for s in samples]
        claim, (low, high) = stats.middle(claims)
        externals = sorted(s.external_us for s in samples)
        external = externals[len(externals) // 2]
        allowed, forged = 0.0, None
        if ranks:
            allowed = external - room_us(external, calls)
            forged = _forged(claim, min(allowed, externals[0] - MOST_DOUBT_US / calls))
        unlucky = allowed > claim and forged is None
        agrees = allowed <= claim * (1 + AGREE_SHARE)
        if stats.is_narrow(claims, plan.relative, plan.least_rounds) and not unlucky:
            break
        is_known = stats.is_narrow(claims, plan.settled, plan.least_rounds)
        late_s = 0.0 if is_known and (agrees or forged is not None) else plan.late_s
        if len(samples) >= plan.least_rounds and time.monotonic() >= end + late_s:
            break
    if allowed > claim:
        # One that ranks reaches no further than the clocks differ, else it ties with slower ones.
        low, high = allowed, max(high, allowed * (1 + AGREE_SHARE) if agrees else external)
    clocks = [s.sm_mhz for s in samples if s.sm_mhz is not None]
    return Timing(
        time_us=max(claim, allowed, LEAST_US),
        ci_us=(max(low, LEAST_US), max(high, LEAST_US)),
        external_us=external,
        round_us=claims,
        round_mhz=clocks if len(clocks) == len(samples) else [],
        discarded=dict(discarded),
        calls_per_round=calls,
        converged=stats.is_narrow(claims, plan.settled, plan.least_rounds)
        and agrees
        and not any(s.complaint for s in samples),
        graph=graph,
        fault=forged,
    )


def room_us(external_us: float, calls: int) -> float:
    """Microseconds per call by which a score may be less than the outside clock saw."""
    return max(0.0, max(LIMIT_US, LIMIT_SHARE * external_us) - SLACK_US / calls)


def _forged(claim_us: float, least_us: float) -> Fault | None:
    if claim_us >= FORGED_SHARE * least_us or least_us - claim_us <= FORGED_LEAST_US:
        return None
    return Fault(
        Verdict.REJECTED,
        f"it claims {claim_us:.1f} µs a call; the clock outside saw at least {least_us:.1f} µs",
        Rule.TIME_CLAIM,
    )
