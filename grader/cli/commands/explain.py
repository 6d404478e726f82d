"""`grade explain`: a report as one screen of text, for a model or a person."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Dependencies
from grader.cli.options import db_option, result_number

if TYPE_CHECKING:
    from grader.report import Report


@click.command()
@click.argument("result")
@click.option("--text", "as_text", is_flag=True, help="Plain text, also on a terminal.")
@db_option
@click.pass_obj
def explain(deps: Dependencies, result: str, as_text: bool, db: str | None) -> None:
    """Say of RESULT what failed, where, the likely cause, what limits the time, and what to try.

    RESULT is a recorded result's number, a file with what `--json` or a line of `grade batch`
    printed, or - for stdin. The text has at most 40 lines of 100 columns.
    """
    from grader.explanation import explain as explanation

    number = result_number(result)
    if number is not None and not Path(result).exists():
        with closing(deps.board(db)) as board:
            report = board.result(number).report
    else:
        report = _read(result)
    for line in explanation(report, _limited_by(report.problem)).splitlines():
        is_title = bool(line) and line.isupper() and not as_text
        click.secho(line, bold=is_title or None)


def _read(name: str) -> Report:
    """The report in a file. Raises click.UsageError."""
    from pydantic import ValidationError

    from grader.report import HIDDEN_SEED, Report

    try:
        with click.open_file(name) as stream:
            found = json.loads(stream.read())
        found = found.get("report", found) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise ValueError
    except OSError as error:
        raise click.UsageError(f"{name}: {error.strerror}; name a result or a file") from None
    except (ValueError, RecursionError):
        raise click.UsageError(f"{name}: it is no report in JSON") from None
    # A server's answer has no seed and more fields.
    known = {field: value for field, value in found.items() if field in Report.model_fields}
    try:
        return Report.model_validate({"seed": HIDDEN_SEED} | known)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise click.UsageError(f"{name}: it is no report; {where}: {first['msg']}") from None


def _limited_by(problem: str) -> str | None:
    """What limits a good kernel for a problem; None if the problem is not here or does not say."""
    from grader.problem import Problem, ProblemError
    from grader.problem_folders import problem_folder

    folder = problem_folder(problem)
    try:
        return None if folder is None else Problem.load(folder).spec.limited_by
    except ProblemError:
        return None
