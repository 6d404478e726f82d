"""Is A faster than B? An A/B comparison of two submissions, in interleaved rounds.

Each submission has its own warm runner. Drift, such as of the GPU's clock, affects both alike, so
the ratio of neighbouring rounds is measured. The times are those that the runners report; the
outside clock does not check them.

A difference counts if it exceeds what the same rounds show between A and A itself, and B and B: the
control. On a CPU that other processes use, no answer is given.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from grader import stats
from grader.judge.compile import CompileJob, start_compile
from grader.judge.gpu.lock import gpu_lock
from grader.judge.record import Device, Progress, ProgressCallback, Record
from grader.judge.session import Session, greet
from grader.judge.verdict import SubmissionFault, reason_of
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import geometric_mean
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.submission import Submission

if TYPE_CHECKING:
    from grader.judge.grading import Grading

RatioVerdict = Literal["faster", "slower", "same", "unsure"]
SAME_SHARE = {"cuda": 0.0025, "cpu": 0.05}
"""Ratios within this share of 1 count as the same: such differences are not reproducible. On a CPU
two processes with the same code differ that much by where their memory lies."""
MOST_LOAD = 0.1
"""Share of a CPU that other processes may use; with more of it, no times are compared."""
LOAD_S = 0.2
"""Duration of a look at what other processes use, before the first pair of a case and after the
last, while both runners wait."""
CONTROL_SHARE = 0.9
"""Share of the control's ratios that are within the noise. With it, 60,000 simulated comparisons of
a file with itself found no difference, under the six kinds of noise of
tests/judge/test_ab_compare.py; with 0.8 some did."""
MIN_PAIRS, MAX_PAIRS = 12, 40
"""Pairs of rounds per case, one of A and one of B."""
PROC_STAT = Path("/proc/stat")
BUDGET_S = 3.0
"""Time per case, unless `MIN_PAIRS` take longer."""


@dataclass(frozen=True)
class TimeRatio:
    """B's time divided by A's, on one case or on all."""

    name: str
    a_us: float
    b_us: float
    ratio: float
    ci: stats.Interval
    noise: float = 0.0
    """By what share the same code differed from itself in the same rounds."""
    same_share: float = SAME_SHARE["cuda"]
    load: float | None = None
    """Share of the processors that other processes used, from 0 to 1; null on a GPU."""

    @property
    def too_busy(self) -> bool:
        """Whether other processes used the processors too much for an answer."""
        return self.load is not None and self.load > MOST_LOAD

    @property
    def answer(self) -> RatioVerdict:
        """B compared with A: "faster" means that B is faster."""
        low, high = self.ci
        if self.too_busy:
            return "unsure"
        if low >= 1 - self.same_share and high <= 1 + self.same_share:
            return "same"
        if high * (1 + self.noise) < 1:
            return "faster"
        return "slower" if low > 1 + self.noise else "unsure"


@dataclass(frozen=True)
class ABComparison:
    """The result of comparing B with A."""

    cases: list[TimeRatio]
    overall: TimeRatio


class ComparisonError(Exception):
    """One of the two submissions cannot be timed. The text says which one, and why."""


def ab_compare(
    problem: Problem,
    a: Submission,
    b: Submission,
    *,
    sandbox: Sandbox,
    device: Device,
    progress: ProgressCallback = lambda _: None,
) -> ABComparison:
    """Compare B with A. Both must pass every test.

    Raises `ComparisonError` when one fails, `SandboxError` when no runner can be started, and
    `ProblemError` when the problem is broken.
    """
    from grader.judge.grading import Grading  # loads torch

    master = secrets.randbits(53)
    limits = RunnerLimits.of(problem.spec.limits)
    with gpu_lock(device), contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(start_compile(problem, s, sandbox, device)) for s in (a, b)]
        sides = []
        for submission in (a, b):
            runner = stack.enter_context(sandbox.start(limits, device))
            # Each side's time limit also runs while the other one works.
            session = Session(
                runner,
                3 * problem.spec.limits.total_s,
                compile_s=problem.spec.limits.compile_s,
            )
            grading = Grading(problem, session, device, master, Record(), sandbox=sandbox)
            sides.append(_Side(submission, grading))
        for side, job in zip(sides, jobs, strict=True):
            side.test(job, progress)
        cases = problem.cases("benchmark", device)
        if not cases:
            raise ComparisonError(f"{problem.name} has no benchmark case for {device}")
        ratios = []
        for index, case in enumerate(cases):
            progress(Progress("benchmark", case.name, index, len(cases)))
            ratios.append(_time_pairs(sides, case, device))
    return ABComparison(ratios, overall_ratio(ratios))


def overall_ratio(ratios: Sequence[TimeRatio]) -> TimeRatio:
    """The geometric mean of the ratios of all cases. Raises ValueError for none."""
    loads = [r.load for r in ratios if r.load is not None]
    same_share = max(r.same_share for r in ratios)
    return TimeRatio(
        "all",
        geometric_mean([r.a_us for r in ratios]),
        geometric_mean([r.b_us for r in ratios]),
        geometric_mean([r.ratio for r in ratios]),
        stats.product_interval([stats.Estimate(r.ratio, r.ci) for r in ratios]),
        noise=max(same_share, math.hypot(*(r.noise for r in ratios)) / len(ratios)),
        same_share=same_share,
        load=fmean(loads) if loads else None,
    )


def paired_ratio(
    name: str,
    a_us: Sequence[float],
    b_us: Sequence[float],
    device: Device,
    load: float | None = None,
) -> TimeRatio:
    """B / A from pairs of neighbouring rounds, microseconds per call, in the order of the pairs.

    The control compares each round of A with the next of A, and of B with B. `CONTROL_SHARE` of
    these ratios are as near to 1 as the noise. Raises ValueError for less than two pairs.
    """
    same_share = SAME_SHARE[device]
    value, interval = stats.estimate([b / a for a, b in zip(a_us, b_us, strict=True)])
    control = sorted(
        max(earlier, later) / min(earlier, later) - 1
        for side in (a_us, b_us)
        for earlier, later in itertools.pairwise(side)
    )
    if not control:
        raise ValueError("no control without two pairs of rounds")
    noise = max(control[math.ceil(CONTROL_SHARE * len(control)) - 1], same_share)
    a, b = (stats.estimate(side).value for side in (a_us, b_us))
    return TimeRatio(name, a, b, value, interval, noise, same_share, load)


def orders(draw: Callable[[int], int] = secrets.randbelow) -> Iterator[tuple[int, int]]:
    """The order of A, 0, and B, 1, in one pair of rounds after another: A B then B A, so that an
    effect of the order cancels out, or B A then A B, by lot, so that no rhythm of the machine goes
    with one of them."""
    while True:
        first = draw(2)
        yield first, 1 - first
        yield 1 - first, first


def other_load(seconds: float = LOAD_S) -> float | None:
    """The share of all processors that others use for `seconds`, in which the caller rests. None
    where Linux does not tell."""
    before = _processor_ticks()
    time.sleep(seconds)
    after = _processor_ticks()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def _processor_ticks() -> tuple[int, int] | None:
    """Ticks in which processors worked, and all ticks, since the start of the machine."""
    try:
        first = PROC_STAT.read_text().partition("\n")[0]
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal; guests are counted in user.
    ticks = [int(word) for word in first.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


@dataclass(frozen=True)
class _Side:
    """A or B, with its grading in its own runner."""

    submission: Submission
    grading: Grading

    def test(self, job: CompileJob, progress: ProgressCallback) -> None:
        """Load the submission and run every test. Raises `ComparisonError` when one fails."""
        grading, name = self.grading, self.submission.name
        with self.named_faults():
            grading.meet(greet(grading.session, self.submission, grading.device))
            grading.load(self.submission, job.library())
            tests = grading.tests
            with contextlib.closing(grading.reused_arena()) as reused:
                for index, case in enumerate(tests):
                    progress(Progress("test", f"{name}: {case.name}", index, len(tests)))
                    grading.test(reused, case)
            grading.finish_precompiling()
        if grading.record.faults:
            raise ComparisonError(f"{name}: {reason_of(grading.record.faults)}")

    @contextlib.contextmanager
    def named_faults(self) -> Iterator[None]:
        """Turn a `SubmissionFault` into a `ComparisonError` that names this submission."""
        try:
            yield
        except SubmissionFault as stop:
            reason = reason_of(stop.faults)
            raise ComparisonError(f"{self.submission.name}: {reason}") from None


def _time_pairs(sides: Sequence[_Side], case: Case, device: Device) -> TimeRatio:
    """Alternate rounds of A and B until the ratio is known well enough, or `BUDGET_S` ends."""
    from grader.judge.benchmark import open_benchmark
    from grader.judge.timing.plan import POLICY

    with contextlib.ExitStack() as stack:
        benches = []
        for side in sides:
            with side.named_faults():
                benches.append(stack.enter_context(open_benchmark(side.grading, case, sharing=2)))
        times_us: tuple[list[float], list[float]] = ([], [])
        ratios: list[float] = []
        loads = [_load(device)]
        turns = orders()
        end_s = time.monotonic() + BUDGET_S
        while len(ratios) < MAX_PAIRS:
            for which in next(turns):
                with sides[which].named_faults():
                    round_us = benches[which].round(len(ratios) + 1).reported_us
                times_us[which].append(max(round_us, POLICY.least_us))
            ratios.append(times_us[1][-1] / times_us[0][-1])
            enough = stats.is_narrow(ratios, SAME_SHARE[device] / 2, MIN_PAIRS)
            if enough or (len(ratios) >= MIN_PAIRS and time.monotonic() > end_s):
                break
        loads.append(_load(device))
    known = [load for load in loads if load is not None]
    return paired_ratio(case.name, *times_us, device, fmean(known) if known else None)


def _load(device: Device) -> float | None:
    return other_load() if device == "cpu" else None
