"""A grading in steps, for scripts that measure something between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.verdict_latency import problem_of
from grader.judge.benchmark import Benchmark
from grader.judge.compile import start_compile
from grader.judge.grading import Grading
from grader.judge.record import Record
from grader.judge.session import Session, greet
from grader.judge.timing.round import MeasuredRound
from grader.problem import Problem
from grader.problem.spec import Case
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits
from grader.submission import Submission

TOTAL_S = 600.0


@contextmanager
def prepared(sandbox: str, path: Path) -> Iterator[tuple[Grading, Callable[[], None]]]:
    """A grading of `path` on a GPU before its load, and a function that loads the submission.

    The runner is idle until the function is called. When it returns, all compilation has ended.
    """
    problem = problem_of(path)
    submission = Submission.read(path, problem.spec.limits.source_bytes)
    kind = make_sandbox(sandbox)
    with (
        start_compile(problem, submission, kind, "cuda") as compilation,
        kind.start(RunnerLimits.of(problem.spec.limits), "cuda") as runner,
    ):
        session = Session(runner, TOTAL_S)
        greeting = greet(session, submission, "cuda")
        grading = Grading(problem, session, "cuda", 1, Record())
        grading.meet(greeting)
        library = compilation.library()
        grading.prepare()

        def load() -> None:
            grading.load(submission, library)
            grading.finish_precompiling()

        yield grading, load


def chosen(problem: Problem, names: tuple[str, ...]) -> list[Case]:
    """The benchmark cases with these names; all of them without names."""
    return [c for c in problem.cases("benchmark", "cuda") if not names or c.name in names]


@contextmanager
def measured_rounds(bench: Benchmark) -> Iterator[list[MeasuredRound]]:
    """Collects what the clocks saw of each round of `bench`."""
    found: list[MeasuredRound] = []
    run = bench._run

    def collect(*arguments: Any) -> MeasuredRound:
        found.append(run(*arguments))
        return found[-1]

    vars(bench)["_run"] = collect
    try:
        yield found
    finally:
        del vars(bench)["_run"]
