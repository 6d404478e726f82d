"""Is A faster than B? An A/B comparison of two submissions, in interleaved rounds.

Each submission has its own warm runner. Drift, such as of the GPU's clock, affects both alike, so
the ratio of neighbouring rounds is measured. The times are those that the runners report; the
outside clock does not check them.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
SAME_SHARE = 0.0025
"""Ratios within this share of 1 count as the same: such differences are not reproducible."""
MIN_PAIRS, MAX_PAIRS = 8, 40
"""Pairs of rounds per case, one of A and one of B."""
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

    @property
    def answer(self) -> RatioVerdict:
        """B compared with A: "faster" means that B is faster."""
        low, high = self.ci
        if low >= 1 - SAME_SHARE and high <= 1 + SAME_SHARE:
            return "same"
        if high < 1:
            return "faster"
        return "slower" if low > 1 else "unsure"


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
            grading = Grading(problem, session, device, master, Record())
            sides.append(_Side(submission, grading))
        for side, job in zip(sides, jobs, strict=True):
            side.test(job, progress)
        cases = problem.cases("benchmark", device)
        if not cases:
            raise ComparisonError(f"{problem.name} has no benchmark case for {device}")
        ratios = []
        for index, case in enumerate(cases):
            progress(Progress("benchmark", case.name, index, len(cases)))
            ratios.append(_time_pairs(sides, case))
    overall = TimeRatio(
        "all",
        geometric_mean([r.a_us for r in ratios]),
        geometric_mean([r.b_us for r in ratios]),
        geometric_mean([r.ratio for r in ratios]),
        stats.product_interval([stats.Estimate(r.ratio, r.ci) for r in ratios]),
    )
    return ABComparison(ratios, overall)


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


def _time_pairs(sides: Sequence[_Side], case: Case) -> TimeRatio:
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
        end_s = time.monotonic() + BUDGET_S
        while len(ratios) < MAX_PAIRS:
            # A B, then B A, so that an effect of the order cancels out.
            order = (0, 1) if len(ratios) % 2 == 0 else (1, 0)
            for which in order:
                with sides[which].named_faults():
                    round_us = benches[which].round(len(ratios) + 1).reported_us
                times_us[which].append(max(round_us, POLICY.least_us))
            ratios.append(times_us[1][-1] / times_us[0][-1])
            enough = stats.is_narrow(ratios, SAME_SHARE / 2, MIN_PAIRS)
            if enough or (len(ratios) >= MIN_PAIRS and time.monotonic() > end_s):
                break
    a_us, b_us = (stats.estimate(some).value for some in times_us)
    return TimeRatio(case.name, a_us, b_us, *stats.estimate(ratios))
