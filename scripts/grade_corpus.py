"""Grade every file of `submissions/` and compare each verdict with the folder it lies in.

    python -m scripts.grade_corpus [--device cuda] [--sandbox docker] [--only TEXT]... [--out FILE]

Prints a Markdown table with a summary. Exit status 0 when every file that could run here got its
verdict, 1 when one did not.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from grader.cli.corpus import Example, examples
from grader.judge import grade
from grader.problem import Problem
from grader.report import Report, Verdict, one_line
from grader.sandbox.base import Sandbox
from grader.submission import Submission

Device = Literal["cpu", "cuda"]

ROOT = Path(__file__).resolve().parent.parent
LIMITS: dict[Device, dict[str, float]] = {
    "cpu": {"load_s": 30, "call_s": 20, "total_s": 120, "memory_bytes": 2 << 30},
    "cuda": {"load_s": 120, "call_s": 20, "total_s": 300},
}
SHORT_CALL_S: dict[Device, float] = {"cpu": 3, "cuda": 10}
"""Limit of a call for the files that are there to run into it."""


@dataclass(frozen=True)
class Graded:
    """One file of the corpus and what became of it."""

    problem: str
    example: Example
    report: Report | None = None
    """None where it could not run here, or where the judge fell over."""
    failure: str | None = None
    """How the judge fell over."""
    took_s: float = 0.0

    @property
    def outcome(self) -> str:
        """The verdict in a word, or why there is none."""
        if self.failure is not None:
            return "judge fell over"
        if self.report is None:
            return "not run"
        return self.report.verdict.value if self.report.verdict else "no verdict"

    @property
    def ok(self) -> bool | None:
        """Whether it got its verdict and rule; None when it was not run."""
        if self.failure is not None:
            return False
        if self.report is None:
            return None
        return self.example.fits(self.report)

    def row(self) -> str:
        """A row of the Markdown table."""
        mark = {True: "✔", False: "✘", None: "–"}[self.ok]
        rule = f" ({self.example.rule})" if self.example.rule else ""
        report = self.report
        got_rule = f" ({report.rule})" if report and report.rule else ""
        reason = self.failure or (report.reason if report else "needs a GPU")
        score = f"{report.score_us:.2f}" if report and report.score_us is not None else ""
        shares = [c.sol for c in report.cases if c.sol is not None] if report else []
        sol = f"{sum(shares) / len(shares):.2f}" if shares else ""
        reason = one_line(reason, 120).replace("|", "\\|")
        cells = [
            mark,
            f"{self.problem}/{self.example.path.name}",
            f"{self.example.expected}{rule}",
            f"{self.outcome}{got_rule}",
            reason,
            score,
            sol,
            f"{self.took_s:.1f}",
        ]
        return "| " + " | ".join(cells) + " |"


HEAD = """\
| | file | expected | got | reason | score_us | sol | took_s |
|---|---|---|---|---|---|---|---|"""


def problems() -> list[Problem]:
    """Every problem of the repository."""
    return [Problem.load(path.parent) for path in sorted(ROOT.glob("problems/*/problem.yaml"))]


def hasty(problem: Problem, example: Example, device: Device) -> Problem:
    """The same problem with limits that a file which runs into one reaches soon."""
    changes = dict(LIMITS[device])
    if example.expected is Verdict.TIME_LIMIT_EXCEEDED:
        changes["call_s"] = SHORT_CALL_S[device]
    limits = problem.spec.limits.model_copy(update=changes)
    return dataclasses.replace(problem, spec=problem.spec.model_copy(update={"limits": limits}))


def grade_example(
    problem: Problem, example: Example, sandbox: Sandbox, device: Device, benchmarks: bool = True
) -> Report:
    """Grade one file through the real path."""
    submission = Submission.read(example.path, problem.spec.limits.source_bytes)
    hurried = hasty(problem, example, device)
    return grade(hurried, submission, sandbox=sandbox, device=device, benchmarks=benchmarks)


ABOUT_TIME = {
    "all_at_once.py",
    "batches_calls.py",
    "busies_the_copy_engine.py",
    "done_in_flight.py",
    "hostile_launches_early.cu",
    "hostile_prepares_aside.py",
    "hostile_shaves_claim.py",
    "hostile_shaves_to_the_limit.py",
    "hostile_slows_baseline.py",
    "hostile_starts_before_go.py",
    "hostile_waits_at_the_gate.py",
    "l2_persistence.py",
    "overlapping_calls.py",
    "overlaps_some_rounds.py",
    "peeks_ahead.py",
}


def is_timed(example: Example) -> bool:
    """Whether a file's verdict or score hangs on the clock."""
    name = example.path.name
    honest = example.expected == "accepted" and not name.startswith("hostile_")
    return honest or example.rule == "time_claim" or name in ABOUT_TIME


def grade_all(
    sandbox: Sandbox, device: Device, only: tuple[str, ...], timed: str
) -> Iterator[Graded]:
    """Grade the corpus file by file; one that brings the judge down does not stop the rest."""
    for problem in problems():
        for example in examples(problem):
            name = str(example.path.relative_to(ROOT / "submissions"))
            if only and not any(text in name for text in only):
                continue
            if timed != "all" and is_timed(example) != (timed == "yes"):
                continue
            if example.needs_gpu and device == "cpu":
                yield Graded(problem.name, example)
                continue
            start = time.monotonic()
            report, failure = None, None
            try:
                benchmarks = timed != "no" or example.expected != "accepted"
                report = grade_example(problem, example, sandbox, device, benchmarks)
            except Exception as error:  # noqa: BLE001 - it is reported, as the defect it is
                traceback.print_exc()
                failure = f"{type(error).__name__}: {error}"
            took_s = time.monotonic() - start
            yield Graded(problem.name, example, report, failure, took_s)


def make_sandbox(name: str) -> Sandbox:
    """``docker`` or ``process``."""
    if name == "docker":
        from grader.sandbox.docker import DockerSandbox

        return DockerSandbox()
    from grader.sandbox.process import ProcessSandbox

    return ProcessSandbox()


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--sandbox", type=click.Choice(["docker", "process"]), default="process", show_default=True
)
@click.option(
    "--timed",
    type=click.Choice(["all", "yes", "no"]),
    default="all",
    help="Only files about time; or only the others, fit to run in parallel, with few benchmarks.",
)
@click.option("--only", multiple=True, help="Only files whose path contains this.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the table to this file too.")
def main(device: Device, sandbox: str, timed: str, only: tuple[str, ...], out: Path | None) -> None:
    """Grade the corpus and print a Markdown table."""
    lines = [HEAD]
    print(HEAD, flush=True)
    graded = []
    for one in grade_all(make_sandbox(sandbox), device, only, timed):
        graded.append(one)
        lines.append(one.row())
        print(lines[-1], flush=True)
        if out is not None:
            out.write_text("\n".join(lines) + "\n")
    counts = {word: sum(g.ok is ok for g in graded) for word, ok in OUTCOMES.items()}
    summary = f"{len(graded)} files: " + ", ".join(f"{n} {word}" for word, n in counts.items())
    print(f"\n{summary}")
    if out is not None:
        out.write_text("\n".join([*lines, "", summary]) + "\n")
    sys.exit(1 if counts["not as expected"] else 0)


OUTCOMES = {"as expected": True, "not as expected": False, "not run here": None}


if __name__ == "__main__":
    main()
