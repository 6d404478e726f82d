"""`grade leaderboard`: the ranking of a problem, per GPU."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Dependencies
from grader.cli.options import db_option, find_problem, json_option

if TYPE_CHECKING:
    from grader.board import BoardEntry, ListedResult
    from grader.cli.output.text_tables import ResponsiveTable
    from grader.problem import Problem

UNRANKED_ROWS = 5
"""Results that do not rank, of which the newest are listed."""


@click.command()
@click.argument("problem")
@click.option("--gpu", metavar="NAME", help="Only GPUs whose name contains this text.")
@db_option
@json_option
@click.pass_obj
def leaderboard(
    deps: Dependencies, problem: str, gpu: str | None, db: str | None, as_json: bool
) -> None:
    """Show the best accepted result of each user for PROBLEM, fastest first, per GPU.

    Results whose confidence intervals overlap the leader's share a rank. The newest results that do
    not rank follow, with the reason.
    """
    from grader.cli.commands.results import results_table
    from grader.cli.output.terminal import print_json, stdout

    found = find_problem(problem)
    with closing(deps.board(db)) as board:
        names = [n for n in board.gpus(found.digest) if gpu is None or gpu.lower() in n.lower()]
        boards = {name: board.leaderboard(found.digest, name) for name in names}
        others = board.unranked(found.name, found.digest, gpu, most=UNRANKED_ROWS + 1)
    if as_json:
        print_json(_as_json(found, boards, others[:UNRANKED_ROWS]))
        return
    console = stdout()
    for name, entries in boards.items():
        console.print(f"{found.spec.title} on {name}\n", style="bold")
        console.print(_table(entries))
    if not boards:
        where = f" on a GPU whose name contains '{gpu}'" if gpu else ""
        console.print(f"No ranked result for this version of {found.name}{where} yet.")
    if others:
        console.print("\nNot ranked\n", style="bold")
        console.print(results_table(others[:UNRANKED_ROWS], found.digest))
    if len(others) > UNRANKED_ROWS:
        console.print(f"older ones: grade results {found.name}", style="dim")


def _as_json(
    problem: Problem, boards: dict[str, list[BoardEntry]], unranked: list[ListedResult]
) -> dict[str, object]:
    from grader.cli.commands.results import as_json_fields

    shown = [
        {"gpu": gpu, "entries": [asdict(entry) for entry in entries]}
        for gpu, entries in boards.items()
    ]
    return {
        "problem": problem.name,
        "problem_digest": problem.digest,
        "leaderboards": shown,
        "unranked": [as_json_fields(one, problem.digest) for one in unranked],
    }


def _table(entries: list[BoardEntry]) -> ResponsiveTable:
    from rich.text import Text

    from grader.cli.output.render import interval, micros, share, share_bar, speedup
    from grader.cli.output.terminal import safe_text
    from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column

    baselines = list(dict.fromkeys(name for entry in entries for name in entry.speedup))
    intervals = [interval(entry.score_us, entry.ci_us).strip() for entry in entries]

    def ratio(entry: BoardEntry, name: str) -> Text:
        found = entry.speedup.get(name)
        return Text("–" if found is None else speedup(found))

    return ResponsiveTable(
        [
            number_column("rank", [Text(f"{entry.rank}") for entry in entries]),
            TableColumn(
                "user", [safe_text(e.user, 40, "bold" if e.rank == 1 else "") for e in entries]
            ),
            number_column("score", [Text(micros(entry.score_us)) for entry in entries]),
            TableColumn("", [Text(text) for text in intervals], priority=3, style="dim"),
            *(
                number_column(f"× {name}", [ratio(e, name) for e in entries], 2)
                for name in baselines
            ),
            number_column("roofline", [share(entry.sol) for entry in entries], priority=4),
            TableColumn("", [share_bar(entry.sol) for entry in entries], priority=7),
            TableColumn("language", [Text(entry.language) for entry in entries], 5, style="dim"),
            TableColumn("when", [Text(entry.created_at[:10]) for entry in entries], 6, style="dim"),
            number_column(
                "result", [Text(f"{entry.result_id}", "dim") for entry in entries], priority=1
            ),
        ]
    )
