"""`grade replay`: the same source against the same inputs again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Desk
from grader.cli.options import choose_sandbox, db_option, find_problem, sandbox_option

if TYPE_CHECKING:
    from rich.table import Table

    from grader.report import CaseResult, Report
    from grader.submission import Submission

AGREE_RTOL = 1e-6
"""Errors that differ by less than this, relatively, agree."""


@click.command()
@click.argument("result")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="The graded source, when RESULT is a report's file.",
)
@click.option("--problem", "folder", metavar="PROBLEM", help="Where the problem is, if elsewhere.")
@sandbox_option
@db_option
@click.pass_obj
def replay(
    desk: Desk,
    result: str,
    file: Path | None,
    folder: str | None,
    sandbox_name: str,
    db: str | None,
) -> int:
    """Grade RESULT again with its own seed, source and device, and say whether it agrees.

    RESULT is a number on the board, or a file with the report that --json printed. Exit status 0
    when the verdict and every case's outcome are the same again, 1 when not, 3 our fault.
    """
    from grader.cli.commands.submit import Job, run, tell
    from grader.cli.output.terminal import out
    from grader.report import Verdict

    if result.isdecimal() and file is not None:
        raise click.UsageError(
            f"--file: the board holds the source of result {result}; a report's file of that name "
            f"is ./{result}"
        )
    old, submission = _recorded(desk, result, db) if result.isdecimal() else _loaded(result, file)
    problem = find_problem(folder or old.problem)
    if problem.digest != old.problem_digest:
        raise click.UsageError(
            f"result {result} is of version {old.problem_digest[:12]} of {old.problem}, and "
            f"{problem.folder} is version {problem.digest[:12]}; check that version out, or say "
            "where it is with --problem"
        )
    missing = desk.cuda_missing() if old.device == "cuda" else None
    if missing:
        raise click.UsageError(
            f"result {result} was made on {old.gpu}, and here is none: {missing}"
        )
    sandbox, note = choose_sandbox(desk, sandbox_name)
    job = Job(problem, submission, old.device, sandbox, note)
    new = run(desk, job, show=True, seed=old.seed)
    status = tell(new, as_json=False)
    if new.verdict is Verdict.JUDGE_ERROR:
        return status
    console = out()
    console.print(_comparison(old, new))
    same = _outcome(old) == _outcome(new)
    console.print(
        "the replay agrees" if same else "the replay does NOT agree",
        style="bold green" if same else "bold red",
    )
    return 0 if same else 1


def _recorded(desk: Desk, result: str, db: str | None) -> tuple[Report, Submission]:
    from grader.submission import Submission

    board = desk.board(db)
    try:
        stored = board.result(int(result))
    finally:
        board.close()
    report = stored.report
    return report, Submission(report.submission_name, report.language, stored.source)


def _loaded(result: str, file: Path | None) -> tuple[Report, Submission]:
    from pydantic import ValidationError

    from grader.report import Report
    from grader.submission import Submission

    try:
        text = Path(result).read_bytes()
    except OSError as error:
        raise click.UsageError(
            f"{result}: no number on the board, and no file to read ({error.strerror})"
        ) from None
    if file is None:
        raise click.UsageError("a report holds no source; name the graded file with --file")
    try:
        report = Report.model_validate_json(text)
    except ValidationError as error:
        if ("seed",) in [e["loc"] for e in error.errors() if e["type"] == "missing"]:
            raise click.UsageError(
                f"{result}: it has no seed, so its inputs cannot be drawn again; a report of "
                "--json on this machine has one, a server tells none"
            ) from None
        raise click.UsageError(
            f"{result}: not a report as --json prints it; wrong fields: {error.error_count()}"
        ) from None
    submission = Submission.read(file, max_bytes=1 << 30)
    if submission.sha256 != report.submission_sha256:
        raise click.UsageError(f"{file} is not the source that {result} graded: its sha256 differs")
    return report, submission


def _outcome(report: Report) -> tuple[object, ...]:
    return (report.verdict, report.rule, [(c.kind, c.name, c.status) for c in report.cases])


def _comparison(old: Report, new: Report) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("", "then", "now", "agree", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_row("verdict", f"{old.verdict}", f"{new.verdict}", _yes(old.verdict == new.verdict))
    again = {(case.kind, case.name): case for case in new.cases}
    pairs = [(case, again.get((case.kind, case.name))) for case in old.cases]
    statuses = sum(other is not None and case.status == other.status for case, other in pairs)
    errors = sum(other is not None and _same_errors(case, other) for case, other in pairs)
    count = len(pairs)
    table.add_row("cases' outcomes", f"{count}", f"{statuses} the same", _yes(statuses == count))
    table.add_row("cases' errors", f"{count}", f"{errors} the same", _yes(errors == count))
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
