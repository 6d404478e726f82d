"""`grade compare`: which of two kernels is faster, and how surely."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Desk
from grader.cli.options import (
    choose_device,
    device_option,
    find_problem,
    json_option,
    problem_folders,
    sandbox_option,
)

if TYPE_CHECKING:
    from rich.console import Console

    from grader.cli.commands.submit import Job
    from grader.cli.output.tables import Fitting
    from grader.judge.ab_compare import ABComparison, RatioVerdict, TimeRatio
    from grader.problem import Problem

STYLES: dict[RatioVerdict, str] = {
    "faster": "bold green",
    "slower": "bold red",
    "same": "bold",
    "unsure": "yellow",
}


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--problem", metavar="PROBLEM", help="The problem, if the files do not show which it is."
)
@device_option
@sandbox_option
@json_option
@click.pass_obj
def compare(
    desk: Desk,
    a: Path,
    b: Path,
    problem: str | None,
    device: str,
    sandbox_name: str,
    as_json: bool,
) -> int:
    """Say whether kernel B is faster than kernel A, slower, or the same.

    Both are tested, and then timed in turn in sandboxes of their own, so that what drifts meets
    both alike. Each ratio is B's time over A's, with its 95 % interval; B is 25 % faster where
    A takes 25 % longer. For your own code: unlike a grading for the board, it believes the times
    that the files' own processes tell. Exit status 0 when there is an answer (unsure is one), 1
    when a file is not right on every test, 2 when the call is wrong.
    """
    from grader.cli.commands.submit import Job
    from grader.cli.output.terminal import emit, err, out
    from grader.judge.ab_compare import ComparisonError
    from grader.report import one_line

    found = find_problem(problem) if problem else _problem_of(a)
    jobs = [Job.prepare(desk, found, file, device, sandbox_name) for file in (a, b)]
    if a.name == b.name:
        jobs = [_by_path(job, file) for job, file in zip(jobs, (a, b), strict=True)]
    chosen = choose_device(desk, device)
    for job in jobs:
        if chosen == "cpu" and job.submission.language == "cuda":
            raise click.UsageError(f"{job.submission.name}: a .cu file needs a GPU to be timed")
    if not as_json and jobs[0].note:
        err().print(jobs[0].note, style="yellow", soft_wrap=True)
    try:
        comparison = _compare(desk, jobs[0], jobs[1], show=not as_json)
    except ComparisonError as error:
        if as_json:
            emit(json.dumps({"error": one_line(str(error))}))
        else:
            click.echo(f"grade: {one_line(str(error))}", err=True)
        return 1
    if as_json:
        emit(_as_json(found, comparison))
    else:
        _print(out(), [job.submission.name for job in jobs], comparison, chosen)
    return 0


def _by_path(job: Job, file: Path) -> Job:
    """The same job of a submission that goes by its whole path."""
    return replace(job, submission=replace(job.submission, name=str(file)))


def _compare(desk: Desk, a: Job, b: Job, *, show: bool) -> ABComparison:
    from grader.cli.commands.submit import unwinding
    from grader.cli.output.progress import watching

    with unwinding(), watching(show) as watcher:
        return desk.compare(
            a.problem,
            a.submission,
            b.submission,
            sandbox=a.sandbox,
            device=a.device,
            progress=watcher,
        )


def _problem_of(file: Path) -> Problem:
    """The one problem whose entry the file defines. Raises click.UsageError otherwise."""
    from grader.submission import Submission

    text = Submission.read(file, 1 << 20).source.decode("utf-8", "replace")
    matches = []
    for folder in problem_folders():
        problem = find_problem(str(folder))
        entry = re.escape(problem.spec.entry)
        if re.search(rf"(?m)^\s*def {entry}\(|\bvoid {entry}\(", text):
            matches.append(problem)
    if len(matches) == 1:
        return matches[0]
    names = " or ".join(problem.name for problem in matches) or "no known one"
    raise click.UsageError(f"{file} could be of {names}; say which: --problem PROBLEM")


def _print(console: Console, names: list[str], comparison: ABComparison, device: str) -> None:
    from rich.text import Text

    from grader.cli.output.terminal import safe

    for letter, name in zip("AB", names, strict=True):
        console.print(Text.assemble((f"{letter}  ", "bold"), safe(name)))
    console.print()
    console.print(_table([*comparison.cases, comparison.overall]))
    console.print()
    console.print(_sentence(comparison.overall))
    if device == "cpu":
        console.print("times of a CPU: practice", style="dim")


def _table(ratios: list[TimeRatio]) -> Fitting:
    from rich.text import Text

    from grader.cli.output.tables import Column, Fitting, numbers

    intervals = [Text(f"{low:.4f} – {high:.4f}") for low, high in (one.ci for one in ratios)]
    return Fitting(
        [
            Column("case", [Text(one.name) for one in ratios]),
            numbers("A µs", [Text(f"{one.a_us:.2f}") for one in ratios], turn=1),
            numbers("B µs", [Text(f"{one.b_us:.2f}") for one in ratios], turn=1),
            numbers("B / A", [Text(f"{one.ratio:.4f}") for one in ratios]),
            numbers("95 % interval", intervals, turn=2),
            Column("B is", [Text(one.answer, STYLES[one.answer]) for one in ratios]),
        ],
        total=True,
    )


def _sentence(overall: TimeRatio) -> str:
    from grader.cli.output.render import AS_TIMES, gap

    by = gap(overall.ratio)
    match overall.answer:
        case "same":
            return "B and A are the same."
        case "unsure":
            return f"Unsure: B over A lies between {overall.ci[0]:.4f} and {overall.ci[1]:.4f}."
        case word:
            amount = f"{by * 100:.2f} %" if by < AS_TIMES else f"{1 + by:.2f}×"
            return f"B is {amount} {word} than A."


def _as_json(problem: Problem, comparison: ABComparison) -> str:
    from dataclasses import asdict

    def one(ratio: TimeRatio) -> dict[str, object]:
        return asdict(ratio) | {"answer": ratio.answer}

    return json.dumps(
        {
            "problem": problem.name,
            "overall": one(comparison.overall),
            "cases": [one(ratio) for ratio in comparison.cases],
        }
    )
