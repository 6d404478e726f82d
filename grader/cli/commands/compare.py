"""`grade compare`: time two kernels against each other."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import LocalJob, unwind_on_sigterm
from grader.cli.options import (
    device_option,
    find_problem,
    json_option,
    sandbox_option,
)
from grader.problem_folders import problem_folders

if TYPE_CHECKING:
    from rich.console import Console

    from grader.cli.output.text_tables import ResponsiveTable
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
    "--problem", metavar="PROBLEM", help="The problem, if the entry in file A does not identify it."
)
@device_option
@sandbox_option
@json_option
@click.pass_obj
def compare(
    deps: Dependencies,
    a: Path,
    b: Path,
    problem: str | None,
    device: str,
    sandbox_name: str,
    as_json: bool,
) -> int:
    """Say whether kernel B is faster than kernel A, slower, or the same.

    Both kernels are tested, and then timed alternately in two sandboxes, so that drift of the
    machine affects both. A ratio is B's time over A's, with its 95 % interval; B is 25 % faster if
    A takes 25 % longer. A difference counts if it exceeds what the same code shows against itself
    in the same rounds. On a CPU that other processes use, the answer is "unsure".

    For your own code: unlike `grade submit`, it believes the times that the kernels' own processes
    report. Exit status: 0 for an answer ("unsure" is one), 1 if a kernel fails a test, 2 wrong
    usage.
    """
    from grader.cli.output.progress import show_progress
    from grader.cli.output.terminal import print_json, print_warning, stdout
    from grader.judge.ab_compare import ComparisonError
    from grader.report import one_line

    found = find_problem(problem, deps, device, sandbox_name) if problem else _problem_with_entry(a)
    jobs = [LocalJob.load(deps, found, file, device, sandbox_name) for file in (a, b)]
    if a.name == b.name:
        jobs = [_named_by_path(job, file) for job, file in zip(jobs, (a, b), strict=True)]
    first, second = jobs
    for job in jobs:
        if job.device == "cpu" and job.submission.language == "cuda":
            raise click.UsageError(f"{job.submission.name}: timing a .cu file needs a GPU")
    if not as_json and first.note:
        print_warning(first.note)
    try:
        with unwind_on_sigterm(), show_progress(not as_json) as display:
            comparison = deps.compare(
                found,
                first.submission,
                second.submission,
                sandbox=first.sandbox,
                device=first.device,
                progress=display,
            )
    except ComparisonError as error:
        if as_json:
            print_json({"error": one_line(str(error))})
        else:
            click.echo(f"grade: {one_line(str(error))}", err=True)
        return 1
    if as_json:
        print_json(_as_json(found, comparison))
    else:
        _print(stdout(), [job.submission.name for job in jobs], comparison, first.device)
    return 0


def _named_by_path(job: LocalJob, file: Path) -> LocalJob:
    """The same job with the whole path as the submission's name."""
    return replace(job, submission=replace(job.submission, name=str(file)))


def _problem_with_entry(file: Path) -> Problem:
    """The only problem whose entry the file defines. Raises click.UsageError if there is none, or
    several."""
    from grader.problem import ProblemError
    from grader.submission import Submission

    text = Submission.read(file, 1 << 20).source.decode("utf-8", "replace")
    matches = []
    for folder in problem_folders():
        try:
            problem = find_problem(str(folder))
        except ProblemError:
            continue  # `grade problems` says what is wrong with it
        entry = re.escape(problem.spec.entry)
        if re.search(rf"(?m)^\s*def {entry}\(|\bvoid {entry}\(", text):
            matches.append(problem)
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise click.UsageError(
            f"{file} defines the entry of no known problem; give the problem with --problem"
        )
    names = " or ".join(problem.name for problem in matches)
    raise click.UsageError(f"{file} could be for {names}; choose with --problem")


def _print(console: Console, names: list[str], comparison: ABComparison, device: str) -> None:
    from rich.text import Text

    from grader.cli.output.terminal import safe_text

    for letter, name in zip("AB", names, strict=True):
        console.print(Text.assemble((f"{letter}  ", "bold"), safe_text(name)))
    console.print()
    console.print(_table([*comparison.cases, comparison.overall]))
    console.print()
    console.print(_sentence(comparison.overall))
    if device == "cpu":
        console.print("CPU times are practice and not ranked", style="dim")


def _table(ratios: list[TimeRatio]) -> ResponsiveTable:
    from rich.text import Text

    from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column

    intervals = [Text(f"{low:.4f} – {high:.4f}") for low, high in (one.ci for one in ratios)]
    return ResponsiveTable(
        [
            TableColumn("case", [Text(one.name) for one in ratios]),
            number_column("A µs", [Text(f"{one.a_us:.2f}") for one in ratios], priority=1),
            number_column("B µs", [Text(f"{one.b_us:.2f}") for one in ratios], priority=1),
            number_column("B / A", [Text(f"{one.ratio:.4f}") for one in ratios]),
            number_column("95 % interval", intervals, priority=2),
            TableColumn("B is", [Text(one.answer, STYLES[one.answer]) for one in ratios]),
        ],
        total=True,
    )


def _sentence(overall: TimeRatio) -> str:
    from grader.cli.output.render import RATIO_FROM, gap

    by = gap(overall.ratio)
    if overall.too_busy:
        return (
            "The machine was too busy to tell: other processes used "
            f"{overall.load or 0:.0%} of its processors. Compare again when it is idle."
        )
    match overall.answer:
        case "same":
            return f"B and A are equally fast, to within {overall.same_share:.2%}."
        case "unsure":
            return (
                f"Unsure: B / A is between {overall.ci[0]:.4f} and {overall.ci[1]:.4f}, where the "
                f"same code differs by {overall.noise:.1%} from round to round."
            )
        case word:
            amount = f"{by * 100:.2f} %" if by < RATIO_FROM else f"{1 + by:.2f}×"
            return f"B is {amount} {word} than A."


def _as_json(problem: Problem, comparison: ABComparison) -> dict[str, object]:
    def one(ratio: TimeRatio) -> dict[str, object]:
        return asdict(ratio) | {"answer": ratio.answer}

    return {
        "problem": problem.name,
        "overall": one(comparison.overall),
        "too_busy": comparison.overall.too_busy,
        "cases": [one(ratio) for ratio in comparison.cases],
    }
