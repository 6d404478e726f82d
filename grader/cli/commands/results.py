"""`grade results`: the recorded results of this machine's board, whatever their verdict."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from grader.cli.dependencies import Dependencies
from grader.cli.options import (
    board_server_option,
    db_option,
    find_problem,
    json_option,
    refuse_local_options,
)

if TYPE_CHECKING:
    from grader.board import ListedResult
    from grader.cli.output.text_tables import ResponsiveTable


@click.command()
@click.argument("problem", required=False)
@click.option("--user", metavar="NAME", help="Only the results of this user.")
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="How many of the newest to list.",
)
@board_server_option
@db_option
@json_option
@click.pass_obj
def results(
    deps: Dependencies,
    problem: str | None,
    user: str | None,
    last: int,
    server: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """List the results that `grade submit` has recorded here, newest first.

    Results of every verdict are listed, of PROBLEM or of all problems. `grade show NUMBER` shows
    one again, `grade replay NUMBER` grades it again.

    With --server, lists your submissions there, or those of --user.
    """
    if server:
        from grader.cli.remote import Client, problem_name
        from grader.cli.remote_board import print_results

        refuse_local_options("reading the board of this machine", db="db")
        with Client.find(server, needs_token=user is None) as client:
            wanted = None if problem is None else problem_name(problem)
            print_results(client, wanted, user, last, as_json)
        return
    from grader.cli.output.terminal import print_json, stdout

    name = None if problem is None else _name_of(problem)
    with closing(deps.board(db)) as board:
        listed = board.results(name, user, most=last + 1)
    shown, more = listed[:last], len(listed) > last
    if as_json:
        print_json({"results": [as_json_fields(one) for one in shown], "more": more})
        return
    console = stdout()
    if not shown:
        what = " of ".join(filter(None, ["No result", name, user]))
        console.print(f"{what} is recorded here; `grade submit` records one.")
        return
    console.print(results_table(shown))
    if more:
        console.print(f"older ones are not listed; --last {2 * last} lists more", style="dim")


def as_json_fields(one: ListedResult, problem_digest: str | None = None) -> dict[str, Any]:
    """What `--json` prints of a listed result."""
    from grader.cli.output.render import why_unranked

    report = one.report
    return {
        "id": report.id,
        "problem": report.problem,
        "problem_digest": report.problem_digest,
        "verdict": report.verdict,
        "rule": report.rule,
        "reason": report.reason,
        "score_us": report.score_us,
        "score_ci_us": report.score_ci_us,
        "device": report.device,
        "gpu": report.gpu,
        "unranked": why_unranked(report, problem_digest, void=one.void),
        "file": report.submission_name,
        "user": one.user,
        "created_at": report.created_at.isoformat(timespec="seconds"),
    }


def results_table(listed: list[ListedResult], problem_digest: str | None = None) -> ResponsiveTable:
    """A row per result, with why it does not rank.

    problem_digest: the version of the problem that ranks; None if any does.
    """
    from rich.text import Text

    from grader.cli.output.render import micros, verdict_style, why_unranked
    from grader.cli.output.terminal import safe_text
    from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column

    reports = [one.report for one in listed]
    verdicts = [
        Text((r.verdict or "no verdict").replace("_", " "), verdict_style(r.verdict))
        for r in reports
    ]
    scores = [Text("–" if r.score_us is None else micros(r.score_us)) for r in reports]
    whys = [why_unranked(one.report, problem_digest, void=one.void) for one in listed]
    when = [Text(f"{r.created_at.astimezone():%Y-%m-%d %H:%M}") for r in reports]
    columns = [
        number_column("result", [Text(f"#{r.id}", "bold") for r in reports]),
        TableColumn("verdict", verdicts),
        number_column("score", scores, 1),
        TableColumn("file", [safe_text(r.submission_name, 40) for r in reports], 2),
        TableColumn("when", when, 4, style="dim"),
        TableColumn(
            "ranked", [safe_text("no, " + w if w else "yes") for w in whys], 3, wraps_at=16
        ),
    ]
    if len({report.problem for report in reports}) > 1:
        columns.insert(1, TableColumn("problem", [safe_text(r.problem, 64) for r in reports]))
    if len({one.user for one in listed}) > 1:
        columns.insert(2, TableColumn("user", [safe_text(one.user, 40) for one in listed], 5))
    return ResponsiveTable(columns)


def _name_of(problem: str) -> str:
    """The name in results of what `problem` names, whose code need not run."""
    from grader.problem_sets import read_problem, split_prefix

    of_set = split_prefix(problem)
    return find_problem(problem).name if of_set is None else read_problem(*of_set).name
