"""Where do the seconds of a warm grading go? The time of each of the judge's steps.

    python -m benchmarks.judge_profile [--sandbox process] [--device cpu] [--batch] FILE

FILE lies below `submissions/<problem>/`. It is graded twice in warm sandboxes. The table is of the
second grading: the exclusive milliseconds of each step, for the tests and for each benchmark case's
single calls, first round and other rounds. The GPU is synchronized before and after each step,
except those that run beside it, so the total is a little longer than a normal grading.

With `--batch`, each grading is the half of a batch's that times: its tests have passed in another
sandbox, which kept the compiled kernels.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.gpu import require_gpu
from benchmarks.verdict_latency import grade_file, problem_of
from grader.judge import benchmark, grade, grading
from grader.judge.benchmark import Benchmark
from grader.judge.correctness import check
from grader.judge.correctness.batch_check import BatchCheck, EagerOutputs
from grader.judge.correctness.round_check import RoundCheck
from grader.judge.grading import Grading
from grader.judge.integrity.auditor import CopyEngineAudit
from grader.judge.memory.argument_sets import ArgumentSets
from grader.judge.memory.shared_block import ReusedArena, SharedBlock
from grader.judge.problem_code import ProblemCode
from grader.judge.record import Device
from grader.judge.round_inputs import RoundInputs
from grader.judge.session import Session
from grader.report import PassedTests, Report
from grader.sandbox import make_sandbox, pool
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.sandbox.pool import RunnerPool
from grader.submission import Submission

FIRST = 0
"""The index of a case's first whole round, which schedules deferred inputs."""
LEAST_MS = 0.5
"""Steps with a smaller total are left out."""
STEPS: tuple[tuple[Any, str], ...] = (
    *((ProblemCode, name) for name in ("inputs", "run_eager", "run_reference")),
    *((ArgumentSets, name) for name in ("__init__", "fill", "tampered", "close")),
    *((SharedBlock, name) for name in ("prepare", "take_snapshot", "measured_us")),
    *((CopyEngineAudit, name) for name in ("arm", "disarm", "conclude")),
    *((EagerOutputs, name) for name in ("__init__", "compute")),
    (BatchCheck, "suspect_sets"),
    *((RoundCheck, name) for name in ("begin", "worst", "check")),
    (RoundInputs, "fill"),
    *((Benchmark, name) for name in ("round", "warm_up")),
    *((Grading, name) for name in ("meet", "prepare", "load", "test", "new_sets")),
    (Grading, "__init__"),
    *((ReusedArena, name) for name in ("arena", "close")),
    (RunnerPool, "start"),
    (pool._LentRunner, "stop"),
    (benchmark, "run_round"),
    (benchmark, "capture"),
    (check, "_check"),
    (grading, "lend"),
)
BESIDE: tuple[tuple[Any, str], ...] = (
    (SharedBlock, "publish"),
    (CopyEngineAudit, "watch"),
    *((Session, name) for name in ("receive", "ask")),
)
"""Steps during which the GPU works for the submission; they are not synchronized."""


class StepTimes:
    """Milliseconds by part of a grading and by step."""

    def __init__(self) -> None:
        self.part = "else"
        self.spent_ms: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.times: dict[str, Counter[str]] = defaultdict(Counter)
        self._within_ms: list[float] = []

    def step(self, owner: Any, name: str, waits: bool) -> None:
        """Time a function of a module or class."""
        function: Callable[..., Any] = getattr(owner, name)
        called = f"{owner.__name__.removeprefix('grader.judge.')}.{name}"

        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            with self._timed(called, waits):
                return function(*arguments, **options)

        setattr(owner, name, timed)

    @contextmanager
    def _timed(self, called: str, waits: bool) -> Iterator[None]:
        part = self.part
        if waits:
            _synchronize()
        start_s = time.perf_counter()
        self._within_ms.append(0.0)
        try:
            yield
        finally:
            if waits:
                _synchronize()
            took_ms = (time.perf_counter() - start_s) * 1e3
            self.spent_ms[part][called] += took_ms - self._within_ms.pop()
            self.times[part][called] += 1
            if self._within_ms:
                self._within_ms[-1] += took_ms

    def name_parts(self) -> None:
        """Attribute steps to the part of the grading that runs them."""

        def within(owner: Any, name: str, part_of: Callable[..., str]) -> None:
            function: Callable[..., Any] = getattr(owner, name)

            @functools.wraps(function)
            def named(*arguments: Any, **options: Any) -> Any:
                before, self.part = self.part, part_of(*arguments, **options)
                try:
                    return function(*arguments, **options)
                finally:
                    self.part = before

            setattr(owner, name, named)

        def of_round(one: Benchmark, number: int, order: list[int] | None = None) -> str:
            kind = "single calls" if order else "first round" if number == FIRST else "rounds"
            return f"{one.case.name}: {kind}"

        within(Benchmark, "round", of_round)
        within(Benchmark, "warm_up", lambda one: f"{one.case.name}: warm-up")
        within(Grading, "test", lambda *_: "tests")

    def table(self) -> str:
        """The table in Markdown."""
        lines = ["| part | step | times | ms |", "|---|---|---|---|"]
        for part, steps in self.spent_ms.items():
            lines.append(f"| {part} | | | {sum(steps.values()):.1f} |")
            for called, ms in sorted(steps.items(), key=lambda step: -step[1]):
                if ms >= LEAST_MS:
                    lines.append(f"| | `{called}` | {self.times[part][called]} | {ms:.2f} |")
        return "\n".join(lines)


def tested(
    file: Path, sandbox: Sandbox, device: Device, kernels: Path
) -> Callable[[], tuple[Report, float]]:
    """Test a file; what then times it, and returns the report and the seconds."""
    problem = problem_of(file)
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    options: Any = {"sandbox": sandbox, "device": device, "kernels": kernels}
    passed = PassedTests.of(grade(problem, submission, benchmarks=False, **options))

    def timed() -> tuple[Report, float]:
        start_s = time.monotonic()
        report = grade(problem, submission, passed=passed, **options)
        return report, time.monotonic() - start_s

    return timed


def _synchronize() -> None:
    # Synchronizing is an error while a graph is captured.
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda")
@click.option("--settle", default=8.0, show_default=True, help="Seconds a sandbox has to warm up.")
@click.option("--batch", is_flag=True, help="Time only, after tests in another sandbox.")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
def main(sandbox: str, device: Device, settle: float, batch: bool, file: Path) -> None:
    """Time the steps of a warm grading."""
    if device == "cuda":
        require_gpu()
    step_times = StepTimes()
    for owner, name in STEPS:
        step_times.step(owner, name, waits=True)
    for owner, name in BESIDE:
        step_times.step(owner, name, waits=False)
    step_times.name_parts()
    limits = RunnerLimits.of(problem_of(file).spec.limits)
    with RunnerPool(make_sandbox(sandbox), limits, device) as runners:
        for _ in range(2):
            time.sleep(settle)
            with tempfile.TemporaryDirectory() as folder:
                graded: Callable[[], tuple[Report, float]]
                graded = functools.partial(grade_file, file, runners, device)
                if batch:
                    graded = tested(file, runners, device, Path(folder) / "kernels")
                    time.sleep(settle)
                step_times.spent_ms.clear()
                step_times.times.clear()
                report, took_s = graded()
    print(
        f"{file.name}: {report.verdict}, {took_s:.2f} s, {report.stages_s}\n\n{step_times.table()}"
    )


if __name__ == "__main__":
    main()
