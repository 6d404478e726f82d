"""How long to measure, and what a round must be for the judge's clock to know it well enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from grader.judge.gpu.environment import measure_ceilings
from grader.judge.memory.argument_sets import item_bytes, layout_of
from grader.judge.memory.shared_block import block_bytes
from grader.judge.problem_code import Values
from grader.judge.record import Effort
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import FLOOR_SHARE


@dataclass(frozen=True)
class ClockPolicy:
    """The numbers of the clock. Times are in microseconds."""

    idle_rounds: int = 12
    """Rounds of the judge's own calls that calibrate a round's cost."""
    idle_calls: int = 8
    idle_words: int = 1 << 23
    """Calls of such a round, and words of 8 bytes that each reads and writes."""
    publish_rounds: int = 7
    """Publications that calibrate the copy of the inputs."""
    limit_us: float = 3.0
    limit_share: float = 0.02
    """What a submission may gain per call by cheating: the larger of these."""
    slack_us: float = 30.0
    """What a round may cost less than the least idle one, since a kernel's last few outputs may be
    in no probe. Of 900 honest rounds of 23 cases none cost more than 6 less, but one case of
    attention: 29."""
    doubt_us: tuple[float, float] = (200.0, 50.0)
    """By how much the middle honest round may lie above its reported time: started by a message, or
    by the GPU at the gate. A round has enough calls that the limit leaves room for this."""
    most_doubt_us: float = 360.0
    """The same of the shortest honest round at worst; a report further off is a forgery."""
    least_round_us: float = 1500.0
    """Least duration of a round at the roofline's floor, so that launching a graph is a small part
    of it."""
    delay_us: float = 100.0
    """Publishing this much slower than calibrated was disturbed by work of the submission, and the
    delay counts as time of its calls. Without this, 1 of 8 gradings of `begins_before_the_end.py`
    was accepted on an H200, 17 µs too fast."""
    held_up_us: float = 1000.0
    """A delay from which a graph is taken to hold up its own inputs: a graph with branches waits at
    the gate on several hardware queues, each with a time slice (1.9 ms)."""
    least_calls: int = 4
    cold_l2: int = 3
    """Least calls of a round; and the size of all sets together, in L2 caches."""
    memory_share: float = 0.6
    """Share of the device's memory for a round's sets and the judge's copies,"""
    least_calls_share: float = 0.8
    """and for those of the least calls. Where these take more, a round has fewer calls."""
    agree_share: float = 0.005
    """A measured time further than this above the reported one has not settled, and cannot rank."""
    forged_share: float = 0.9
    forged_least_us: float = 3.0
    """A report below this share of what is beyond doubt, by at least this, is a forgery."""
    believed_share: float = 0.5
    """On a CPU, a report below this share of the judge's own time is not shown."""
    long_rounds: int = 3
    long_round_us: float = 50_000.0
    """Rounds by which a CPU's report is then tried, and their duration: starting one costs 0.1 ms,
    more than many a call."""
    most_repeats: int = 5000
    """Most calls of such a round, so that its request stays small."""
    least_us: float = 1e-3
    """Least time, so that a reported zero is still a positive number."""
    pings: int = 20
    pings_per_sample: int = 4
    """Messages exchanged before a round that a message starts, which wake both processors: idle
    ones make its cost vary by 0.3 ms. They go on while inputs are published, with a sample after
    every 4."""
    thorough_one_in: int = 4
    """One round in this many, by lot, and the first that counts have a set that goes through every
    bound; the float64 reference is expensive."""
    floor_share: float = FLOOR_SHARE
    baseline_drift: float = 0.02
    """How much slower PyTorch may have become since before the submission was loaded."""
    rest_share: float = 30.0
    most_rest_s: float = 0.25
    """Rest before a round that tensor cores limit: this many times the last round, at most so long.
    Without it the chip changes its clock from round to round, by 0.7 %."""


POLICY = ClockPolicy()


@dataclass(frozen=True)
class Plan:
    """How long to measure a case."""

    most_calls: int
    least_rounds: int
    most_rounds: int
    budget_s: float
    relative: float
    """Stop when the time is known to ± this share."""
    settled: float
    """Precision that is enough once rounds or budget have ended."""
    overtime_s: float = 0.0
    """How much longer than the budget to go on where that is not reached."""
    most_discarded: int = 0
    """Rounds that may be left out."""


PLANS: dict[tuple[str, Effort], Plan] = {
    ("cuda", "full"): Plan(64, 6, 40, 4.0, 0.002, 0.005, overtime_s=4.0, most_discarded=10),
    ("cuda", "quick"): Plan(16, 5, 12, 0.3, 0.01, 0.01),
    ("cpu", "full"): Plan(2, 3, 20, 0.3, 0.05, 0.05),
    ("cpu", "quick"): Plan(2, 2, 20, 0.1, 0.05, 0.05),
}


def is_tensor_bound(problem: Problem, case: Case) -> bool:
    """Whether tensor cores, and not memory, limit a case at best: such work drives the chip to its
    power limit."""
    if problem.unit != "tensor":
        return False
    ceilings = measure_ceilings()
    moving_s = problem.bytes(case) / ceilings.bytes_per_s
    return problem.flops(case) / ceilings.tensor_per_s > moving_s


def floor_us(problem: Problem, case: Case) -> float:
    """The least time of one call on this GPU, microseconds, by its measured ceilings."""
    nbytes, flops = problem.bytes(case), problem.flops(case)
    return measure_ceilings().floor_us(nbytes, flops, problem.unit)


def calls_per_round(
    problem: Problem,
    case: Case,
    template: Values,
    device: str,
    effort: Effort = "full",
    sharing: int = 1,
    gate: bool = True,
) -> int:
    """Sets of a round: enough for the judge's clock and a cold L2, as far as memory allows.
    `sharing` is how many such blocks must fit; `gate` whether rounds wait at the gate. Fewer than
    `least_calls` only where these do not fit, at least one.

    Computed from the roofline's floor, which no submission can influence.
    """
    plan = PLANS[device, effort]
    if device == "cpu":
        return plan.most_calls
    layout = layout_of(problem, case, template)
    properties = torch.cuda.get_device_properties()
    least_us = max(floor_us(problem, case), POLICY.least_us)
    limit_us = max(POLICY.limit_us, POLICY.limit_share * least_us)
    needed = (POLICY.doubt_us[gate] + POLICY.slack_us) / limit_us
    long_enough = POLICY.least_round_us / least_us
    cold_enough = math.ceil(POLICY.cold_l2 * properties.L2_cache_size / layout.nbytes) + 1
    tail_bytes = layout.nbytes - layout.writable_at  # eager outputs
    held_bytes = block_bytes(layout, item_bytes(problem, case)) + tail_bytes
    most_bytes = properties.total_memory / sharing
    room = int(most_bytes * POLICY.memory_share) // held_bytes
    wanted = min(max(math.ceil(max(needed, long_enough)), cold_enough), plan.most_calls)
    if POLICY.least_calls * held_bytes <= most_bytes * POLICY.least_calls_share:
        return max(POLICY.least_calls, min(wanted, room))
    return max(1, room)
