"""Grade every file of `submissions/` and compare its verdict with the name of its folder.

    python -m scripts.grade_corpus [--device cuda] [--sandbox docker] [--only TEXT]... [--out FILE]
        [--experts] [--tests-only]

With --experts it grades the kernels of `reference/` instead, which must be accepted. Prints a
Markdown table, row by row, and a summary; the rows in FILE are in the order of the corpus.
All visible GPUs share the work. Exit status: 0 if every file that can run here got its expected
verdict, 1 if not.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import click

from grader.cli.commands.baseline import expert_files
from grader.cli.examples import Example, examples
from grader.judge import grade
from grader.problem import Problem
from grader.report import Report, Verdict, one_line
from grader.sandbox import Device, Sandbox, make_sandbox
from grader.submission import Submission
from scripts.workers import workers

ROOT = Path(__file__).resolve().parent.parent
LIMITS: dict[Device, dict[str, float]] = {
    "cpu": {"load_s": 30, "call_s": 20, "total_s": 120, "memory_bytes": 2 << 30},
    "cuda": {"load_s": 120, "call_s": 20, "total_s": 300},
}
SHORT_CALL_S: dict[Device, float] = {"cpu": 3, "cuda": 10}
"""Time limit of a call for files that are expected to exceed it."""


@dataclass(frozen=True)
class CorpusResult:
    """Result of one file of the corpus."""

    problem: str
    example: Example
    report: Report | None = None
    """None if the file cannot run here, or the judge failed."""
    failure: str | None = None
    """Exception of the judge."""
    took_s: float = 0.0
    missing: str | None = None
    """Why it was not run; None if it was."""

    @property
    def outcome(self) -> str:
        """The verdict, or why there is none."""
        if self.failure is not None:
            return "judge failed"
        if self.report is None:
            return "not run"
        return self.report.verdict.value if self.report.verdict else "no verdict"

    @property
    def ok(self) -> bool | None:
        """Whether the verdict and rule are the expected ones; None if it was not run."""
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
        reason = self.failure or (report.reason if report else self.missing or "")
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


def with_short_limits(problem: Problem, example: Example, device: Device) -> Problem:
    """The same problem with short limits, so that files that exceed them end soon."""
    changes = dict(LIMITS[device])
    if example.expected is Verdict.TIME_LIMIT_EXCEEDED:
        changes |= {"call_s": SHORT_CALL_S[device], "compile_s": 0}
    limits = problem.spec.limits.model_copy(update=changes)
    return dataclasses.replace(problem, spec=problem.spec.model_copy(update={"limits": limits}))


def grade_example(
    problem: Problem, example: Example, sandbox: Sandbox, device: Device, benchmarks: bool = True
) -> Report:
    """Grade one file with the judge."""
    submission = Submission.read(example.path, problem.spec.limits.source_bytes)
    short = with_short_limits(problem, example, device)
    return grade(short, submission, sandbox=sandbox, device=device, benchmarks=benchmarks)


def experts(problem: Problem) -> list[Example]:
    """The kernels of `reference/`."""
    return [
        Example(path, Verdict.ACCEPTED, needs_gpu=path.suffix == ".cu")
        for path in expert_files(problem)
    ]


def cheats_on_time(example: Example) -> bool:
    """Whether it may be found out only while it is timed."""
    return example.path.name.startswith("hostile_")


def select(
    only: tuple[str, ...], files: Callable[[Problem], list[Example]] = examples
) -> list[tuple[Problem, Example]]:
    """The files whose path contains one of the texts; without texts, all files."""
    return [
        (problem, example)
        for problem in problems()
        for example in files(problem)
        if not only or any(text in str(example.path.relative_to(ROOT)) for text in only)
    ]


def run_example(
    problem: Problem, example: Example, sandbox: str, device: Device, benchmarks: bool = True
) -> CorpusResult:
    """Grade one file if it can run here; a failure of the judge is a result too."""
    if why := example.missing(device):
        return CorpusResult(problem.name, example, missing=why)
    start = time.monotonic()
    report, failure = None, None
    try:
        report = grade_example(problem, example, make_sandbox(sandbox), device, benchmarks)
    except Exception as error:  # noqa: BLE001 - reported as a failure of the judge
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
    return CorpusResult(problem.name, example, report, failure, time.monotonic() - start)


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--sandbox", type=click.Choice(["docker", "process"]), default="process", show_default=True
)
@click.option("--only", multiple=True, help="Only files whose path contains this text.")
@click.option("--out", type=click.Path(path_type=Path), help="File to write the table to as well.")
@click.option("--experts", "of_experts", is_flag=True, help="Grade the files of reference/.")
@click.option(
    "--tests-only",
    is_flag=True,
    help="Time nothing, and leave out files that cheat while they are timed.",
)
def main(
    device: Device,
    sandbox: str,
    only: tuple[str, ...],
    out: Path | None,
    of_experts: bool,
    tests_only: bool,
) -> None:
    """Grade the corpus and print a Markdown table."""
    rows: dict[int, str] = {}
    counts: Counter[bool | None] = Counter()
    with workers(device) as executor:
        files = select(only, experts if of_experts else examples)
        if tests_only:
            every, files = files, [(p, one) for p, one in files if not cheats_on_time(one)]
            if left_out := len(every) - len(files):
                print(f"{left_out} files may cheat only while they are timed: left out", flush=True)
        print(HEAD, flush=True)
        indices = {
            executor.submit(run_example, problem, example, sandbox, device, not tests_only): index
            for index, (problem, example) in enumerate(files)
        }
        for future in as_completed(indices):
            try:
                result = future.result()
            except BrokenProcessPool:
                problem, example = files[indices[future]]
                result = CorpusResult(problem.name, example, failure="the judge's process died")
            counts[result.ok] += 1
            rows[indices[future]] = result.row()
            print(result.row(), flush=True)
            if out is not None:
                out.write_text("\n".join([HEAD, *(rows[index] for index in sorted(rows))]) + "\n")
    shown = ", ".join(f"{counts[ok]} {word}" for word, ok in OUTCOMES.items())
    summary = f"{counts.total()} files: {shown}"
    print(f"\n{summary}")
    if out is not None:
        with out.open("a") as file:
            file.write(f"\n{summary}\n")
    sys.exit(1 if counts[False] else 0)


OUTCOMES = {"as expected": True, "not as expected": False, "not run here": None}


if __name__ == "__main__":
    main()
