"""`grade replay`: grade a recorded result again with the same inputs."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import LocalJob, print_report, run
from grader.cli.options import (
    choose_sandbox,
    db_option,
    find_problem,
    result_number,
    sandbox_option,
)

if TYPE_CHECKING:
    from rich.table import Table

    from grader.problem import Problem
    from grader.report import CaseResult, Report
    from grader.submission import Submission

AGREE_RTOL = 1e-6
"""Relative difference up to which two errors agree."""


@click.command()
@click.argument("result")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="The graded source, if RESULT is a file.",
)
@click.option(
    "--problem",
    "folder",
    metavar="PROBLEM",
    help="Folder of the problem, or SET:PATH, if its name does not find it.",
)
@sandbox_option
@db_option
@click.pass_obj
def replay(
    deps: Dependencies,
    result: str,
    file: Path | None,
    folder: str | None,
    sandbox_name: str,
    db: str | None,
) -> int:
    """Grade RESULT again with the same seed, source and device, and compare the outcomes.

    RESULT is a number on the board, or a file with the report that --json printed. Exit status: 0
    if the verdict and the outcome of every case are the same, 1 if not, 3 judge error.
    """
    from grader.cli.output.terminal import stdout
    from grader.report import Verdict

    number = result_number(result)
    if number is not None and file is not None:
        raise click.UsageError(
            f"--file: the board holds the source of result {result}; if you mean a file of that "
            f"name, write ./{result}"
        )
    old, submission = _from_file(result, file) if number is None else _from_board(deps, number, db)
    problem = _problem(deps, folder, old, sandbox_name)
    if problem.digest != old.problem_digest:
        raise click.UsageError(
            f"result {result} is of version {old.problem_digest[:12]} of {old.problem}, and "
            f"{problem.folder} is version {problem.digest[:12]}; check out the old version, or "
            "give its folder with --problem"
        )
    missing = deps.cuda_missing() if old.device == "cuda" else None
    if missing:
        raise click.UsageError(f"result {result} needs a GPU (it was made on {old.gpu}): {missing}")
    sandbox, note = choose_sandbox(deps, sandbox_name)
    # `grader.check` has no benchmarks, and `--case` selects.
    problem = replace(problem, selected=frozenset(case.name for case in old.cases) or None)
    job = LocalJob(problem, submission, old.device, sandbox, note)
    new = run(deps, job, show=True, seed=old.seed)
    status = print_report(new, as_json=False)
    if new.verdict is Verdict.JUDGE_ERROR:
        return status
    console = stdout()
    console.print(_comparison(old, new))
    same = _outcome(old) == _outcome(new)
    console.print(
        "the replay agrees" if same else "the replay does NOT agree",
        style="bold green" if same else "bold red",
    )
    return 0 if same else 1


def _problem(deps: Dependencies, text: str | None, old: Report, sandbox_name: str) -> Problem:
    """The problem of an old report. Raises click.UsageError if it is not found."""
    from grader.problem_sets import problem_argument

    argument = problem_argument(old.problem)
    if text is None and argument != old.problem:
        raise click.UsageError(
            f"{old.problem} is a problem of another set; say where it is: --problem {argument}"
        )
    return find_problem(text or old.problem, deps, old.device, sandbox_name)


def _from_board(deps: Dependencies, number: int, db: str | None) -> tuple[Report, Submission]:
    from grader.submission import Submission

    with closing(deps.board(db)) as board:
        stored = board.result(number)
    report = stored.report
    if stored.source_was_removed:
        raise click.UsageError(
            f"the source of result {number} was removed, since it was old and did not rank, so it "
            "cannot be graded again"
        )
    return report, Submission(report.submission_name, report.language, stored.source)


def _from_file(result: str, file: Path | None) -> tuple[Report, Submission]:
    from pydantic import ValidationError

    from grader.report import Report
    from grader.submission import Submission

    try:
        text = Path(result).read_bytes()
    except OSError as error:
        raise click.UsageError(
            f"{result}: not a result's number, and not a readable file ({error.strerror})"
        ) from None
    if file is None:
        raise click.UsageError("a report has no source; give the graded file with --file")
    try:
        report = Report.model_validate_json(text)
    except ValidationError as error:
        if ("seed",) in [e["loc"] for e in error.errors() if e["type"] == "missing"]:
            raise click.UsageError(
                f"{result}: the report has no seed, so its inputs cannot be generated again; "
                "servers keep seeds secret, use a report of a grading on this machine"
            ) from None
        raise click.UsageError(
            f"{result}: not a report as --json prints it; wrong fields: {error.error_count()}"
        ) from None
    submission = Submission.read(file, max_bytes=1 << 30, solutions=True)
    if submission.sha256 != report.submission_sha256:
        raise click.UsageError(f"{file} is not the source of {result}: its sha256 differs")
    return report, submission


def _outcome(report: Report) -> tuple[object, ...]:
    return (report.verdict, report.rule, [(c.kind, c.name, c.status) for c in report.cases])


def _comparison(old: Report, new: Report) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("", "recorded", "replay", "same", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_row("verdict", f"{old.verdict}", f"{new.verdict}", _yes(old.verdict == new.verdict))
    again = {(case.kind, case.name): case for case in new.cases}
    pairs = [(case, again.get((case.kind, case.name))) for case in old.cases]
    statuses = sum(other is not None and case.status == other.status for case, other in pairs)
    errors = sum(other is not None and _same_errors(case, other) for case, other in pairs)
    count = len(pairs)
    table.add_row("case outcomes", f"{count}", f"{statuses} the same", _yes(statuses == count))
    table.add_row("case errors", f"{count}", f"{errors} the same", _yes(errors == count))
    return table


def _same_errors(old: CaseResult, new: CaseResult) -> bool:
    return all(
        _close(getattr(old, name), getattr(new, name))
        for name in ("max_abs_err", "rel_l2", "worst_slice_rel_l2")
    )


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=AGREE_RTOL) or (math.isnan(a) and math.isnan(b))


def _yes(same: bool) -> str:
    return "yes" if same else "NO"
