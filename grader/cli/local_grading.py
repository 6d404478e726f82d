"""One grading on this machine: load, choose device and sandbox, run, print, exit status."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from grader.cli.dependencies import Dependencies
from grader.cli.options import choose_device, choose_sandbox, find_problem

if TYPE_CHECKING:
    from grader.judge.record import Effort
    from grader.problem import Problem
    from grader.report import Report
    from grader.sandbox.base import Device, Sandbox
    from grader.submission import Submission


@dataclass(frozen=True)
class LocalJob:
    """A checked submission with the problem, device and sandbox of its grading."""

    problem: Problem
    submission: Submission
    device: Device
    sandbox: Sandbox
    note: str | None = None
    """Warning about the sandbox, for the user."""

    @classmethod
    def load(
        cls, deps: Dependencies, problem: str | Problem, file: Path, device: str, sandbox_name: str
    ) -> LocalJob:
        """Load the problem and the file, and choose where to run.

        Raises click.UsageError, ProblemError or SubmissionError: exit status 2.
        """
        from grader.submission import Submission

        found = (
            find_problem(problem, deps, device, sandbox_name)
            if isinstance(problem, str)
            else problem
        )
        submission = Submission.read(
            file, found.spec.limits.source_bytes, solutions=found.takes_solutions
        )
        chosen = choose_device(deps, device)
        sandbox, note = choose_sandbox(deps, sandbox_name)
        return cls(found, submission, chosen, sandbox, note)


class JudgeFault(Exception):
    """A grading or profile failed for a reason that is not the submission's."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.reason)
        self.report = report
        """The `judge_error` to print."""


def run(
    deps: Dependencies,
    job: LocalJob,
    *,
    show: bool,
    seed: int | None = None,
    effort: Effort = "full",
) -> Report:
    """Grade one job; with `show`, notes and progress go to stderr."""
    from grader.cli.output.progress import show_progress
    from grader.cli.output.terminal import print_warning

    if show and job.note:
        print_warning(job.note)
    try:
        with judge_faults(job, seed), show_progress(show) as display:
            return deps.grade(
                job.problem,
                job.submission,
                sandbox=job.sandbox,
                device=job.device,
                seed=seed,
                effort=effort,
                progress=display,
            )
    except JudgeFault as fault:
        return fault.report


@contextmanager
def judge_faults(
    job: LocalJob, seed: int | None = None, expected: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn unexpected exceptions of the judge into `JudgeFault`; SIGTERM and SIGHUP unwind.

    ProblemError and the `expected` ones pass. With GRADE_DEBUG=1 all of them do.
    """
    from grader.problem import ProblemError

    try:
        with unwind_on_sigterm():
            yield
    except Exception as error:
        if isinstance(error, (ProblemError, *expected)) or os.environ.get("GRADE_DEBUG") == "1":
            raise
        raise JudgeFault(_judge_error(job, error, seed)) from error


def _judge_error(job: LocalJob, error: Exception, seed: int | None) -> Report:
    from grader.report import Report, Verdict, escape, one_line
    from grader.sandbox.base import SandboxError

    known = isinstance(error, SandboxError)
    advice = "; `grade doctor` examines this machine" if known else ""
    what = str(error) if known else f"{type(error).__name__}: {error} (GRADE_DEBUG=1 shows where)"
    return Report(
        problem=job.problem.name,
        problem_digest=job.problem.digest,
        submission_sha256=job.submission.sha256,
        submission_name=escape(job.submission.name, 100),
        language=job.submission.language,
        verdict=Verdict.JUDGE_ERROR,
        reason=one_line(what),
        device=job.device,
        sandbox=job.sandbox.name,  # describe() may be what fails
        seed=seed or 0,
        notes=[f"this is a fault of the judge, and nothing was recorded{advice}"],
    )


def print_report(report: Report, as_json: bool, problem: Problem | None = None) -> int:
    """Print a report as a JSON object or as text, and return its exit status.

    With `problem`, the text also compares the times with the recorded baselines. Without a verdict,
    the object also has `error`, as with every exit status 2.
    """
    from grader.cli.output.baseline_view import recorded_baselines
    from grader.cli.output.render import render
    from grader.cli.output.terminal import print_json, stdout

    if as_json and report.verdict is None:
        print_json(report.model_dump(mode="json") | {"error": _no_verdict(report)})
    elif as_json:
        print_json(report)
    else:
        console = stdout()
        baselines = recorded_baselines(problem, report) if problem else ()
        console.print(render(report, console.width, baselines))
    return exit_status(report)


def _no_verdict(report: Report) -> str:
    return f"{report.reason}; there is no verdict, and nothing was recorded"


def exit_status(report: Report) -> int:
    """0 for accepted; 1 for any other verdict; 2 when no verdict is possible here; 3 for
    judge_error."""
    from grader.report import Verdict

    if report.verdict is None:
        return 2
    if report.verdict is Verdict.ACCEPTED:
        return 0
    return 3 if report.verdict is Verdict.JUDGE_ERROR else 1


@contextmanager
def unwind_on_sigterm() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit, so that the sandbox is removed on the way out."""
    previous = {n: signal.signal(n, _terminate) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # the shell's status for a process that a signal ended
