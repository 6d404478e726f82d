"""Is A faster than B? Both in warm runners of their own, their rounds taken in turn.

Whatever drifts during a comparison, such as the chip's clock, meets both alike: what is measured is
the ratio of neighbouring rounds. Their times are what the two runners claim: no clock outside
checks them.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from grader import stats
from grader.judge.compile import Compilation, compiling
from grader.judge.gpu.lock import exclusive
from grader.judge.record import Device, Progress, Record, Watcher
from grader.judge.session import Session
from grader.judge.verdict import SubmissionFault
from grader.problem import Problem
from grader.problem.spec import Case
from grader.report import geometric_mean
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.submission import Submission

if TYPE_CHECKING:
    from grader.judge.grading import Grading

Answer = Literal["faster", "slower", "same", "unsure"]
SAME_SHARE = 0.0025
"""Ratios within this of 1 are the same: results that near are not told apart on another day."""
LEAST_PAIRS, MOST_PAIRS = 8, 40
BUDGET_S = 3.0


@dataclass(frozen=True)
class Ratio:
    """B's time over A's, on one case or on all."""

    name: str
    a_us: float
    b_us: float
    ratio: float
    ci: stats.Interval

    @property
    def answer(self) -> Answer:
        """What B is beside A."""
        low, high = self.ci
        if low >= 1 - SAME_SHARE and high <= 1 + SAME_SHARE:
            return "same"
        if high < 1:
            return "faster"
        return "slower" if low > 1 else "unsure"


@dataclass(frozen=True)
class Comparison:
    """What became of comparing B with A."""

    cases: list[Ratio]
    overall: Ratio


class Unequal(Exception):
    """One of the two cannot be timed. The text says which, and why, for a person."""


def versus(
    problem: Problem,
    a: Submission,
    b: Submission,
    *,
    sandbox: Sandbox,
    device: Device,
    progress: Watcher = lambda _: None,
) -> Comparison:
    """Compare B with A. Both must be right on every test.

    Raises `Unequal` when one is not, `SandboxError` when no runner can be started, `ProblemError`
    when the problem is broken.
    """
    from grader.judge.grading import Grading

    master = secrets.randbits(53)
    limits = RunnerLimits.of(problem.spec.limits)
    with exclusive(device), contextlib.ExitStack() as stack:
        gradings = []
        both = [stack.enter_context(compiling(problem, s, sandbox, device)) for s in (a, b)]
        for _ in both:
            runner = stack.enter_context(sandbox.start(limits, device))
            # While the one is at work the other's time passes too.
            session = Session(runner, 3 * problem.spec.limits.total_s)
            gradings.append(Grading(problem, session, device, master, Record()))
        for grading, submission, compilation in zip(gradings, (a, b), both, strict=True):
            _make_ready(grading, submission, compilation, progress)
        cases = problem.cases("benchmark", device)
        if not cases:
            raise Unequal(f"{problem.name} has no benchmark case for {device}")
        ratios = []
        for index, case in enumerate(cases):
            progress(Progress("benchmark", case.name, index, len(cases)))
            ratios.append(_ratio(gradings[0], gradings[1], (a.name, b.name), case))
    overall = Ratio(
        "all",
        geometric_mean([r.a_us for r in ratios]),
        geometric_mean([r.b_us for r in ratios]),
        geometric_mean([r.ratio for r in ratios]),
        stats.product_interval([stats.Middle(r.ratio, r.ci) for r in ratios]),
    )
    return Comparison(ratios, overall)


def _make_ready(
    grading: Grading, submission: Submission, compilation: Compilation, progress: Watcher
) -> None:
    """Load one and hold it against every test."""
    from grader.judge.grade import greet

    problem, device = grading.problem, grading.device
    with _whose(submission.name):
        grading.meet(greet(grading.session, submission, device))
        grading.load(submission, compilation.library())
        tests = problem.cases("test", device)
        with contextlib.closing(grading.reused_arena()) as reused:
            for index, case in enumerate(tests):
                progress(Progress("test", f"{submission.name}: {case.name}", index, len(tests)))
                grading.test(reused, case)
        grading.finish_precompiling()
    if grading.record.faults:
        raise Unequal(f"{submission.name}: {grading.record.faults[0].reason}")


@contextlib.contextmanager
def _whose(name: str) -> Iterator[None]:
    """Say whose fault a fault is."""
    try:
        yield
    except SubmissionFault as stop:
        raise Unequal(f"{name}: {stop.fault.reason}") from None


def _ratio(first: Grading, second: Grading, names: tuple[str, str], case: Case) -> Ratio:
    from grader.judge.benchmark import open_benchmark
    from grader.judge.timing.plan import POLICY

    with contextlib.ExitStack() as stack:
        with _whose(names[0]):
            a = stack.enter_context(open_benchmark(first, case, sharing=2))
        with _whose(names[1]):
            b = stack.enter_context(open_benchmark(second, case, sharing=2))
        times: tuple[list[float], list[float]] = ([], [])
        ratios: list[float] = []
        end_s = time.monotonic() + BUDGET_S
        while len(ratios) < MOST_PAIRS:
            # A B, then B A: whoever goes first may find another chip than the other leaves.
            order = (0, 1) if len(ratios) % 2 == 0 else (1, 0)
            for which in order:
                with _whose(names[which]):
                    reported_us = (a, b)[which].round(len(ratios) + 1).reported_us
                times[which].append(max(reported_us, POLICY.least_us))
            ratios.append(times[1][-1] / times[0][-1])
            enough = stats.is_narrow(ratios, SAME_SHARE / 2, LEAST_PAIRS)
            if enough or (len(ratios) >= LEAST_PAIRS and time.monotonic() > end_s):
                break
    first_us, second_us = (stats.middle(some).value for some in times)
    return Ratio(case.name, first_us, second_us, *stats.middle(ratios))
