"""`grade leaderboard`: who is ahead, per GPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from grader.cli.desk import Desk
from grader.cli.options import db_option, find_problem, json_option

if TYPE_CHECKING:
    from rich.table import Table

    from grader.board import Entry
    from grader.problem import Problem


@click.command()
@click.argument("problem")
@click.option("--gpu", metavar="NAME", help="Only GPUs whose name contains this.")
@db_option
@json_option
@click.pass_obj
def leaderboard(desk: Desk, problem: str, gpu: str | None, db: str | None, as_json: bool) -> None:
    """Show the best accepted result of each user for PROBLEM, fastest first, per GPU.

    Results whose confidence intervals overlap the leader's share a rank.
    """
    from grader.cli.terminal import emit, out

    found = find_problem(problem)
    board = desk.board(db)
    try:
        names = [n for n in board.gpus(found.digest) if gpu is None or gpu.lower() in n.lower()]
        boards = {name: board.leaderboard(found.digest, name) for name in names}
        recorded = board.count(found.name)
    finally:
        board.close()
    if as_json:
        emit(json.dumps(_as_json(found, boards)))
        return
    console = out()
    for name, entries in boards.items():
        console.print(_table(f"{found.spec.title} on {name}", entries))
    if not boards:
        console.print(_nobody(found, gpu, recorded))


def _as_json(problem: Problem, boards: dict[str, list[Entry]]) -> dict[str, object]:
    shown = [
        {"gpu": gpu, "entries": [asdict(entry) for entry in entries]}
        for gpu, entries in boards.items()
    ]
    return {"problem": problem.name, "problem_digest": problem.digest, "leaderboards": shown}


def _table(title: str, entries: list[Entry]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from grader.cli.render import interval, micros, roofline_share, speedup
    from grader.cli.terminal import safe

    table = Table(title=Text(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("rank", justify="right")
    table.add_column("user")
    table.add_column("score", justify="right", no_wrap=True)
    baselines = list(dict.fromkeys(name for entry in entries for name in entry.speedup))
    for name in baselines:
        table.add_column(f"× {name}", justify="right", no_wrap=True)
    table.add_column("of roofline", no_wrap=True)
    for heading in ("language", "when", "result"):
        table.add_column(heading, style="dim", no_wrap=True)
    for entry in entries:
        score = Text.assemble(
            micros(entry.score_us), (interval(entry.score_us, entry.ci_us), "dim")
        )
        ratios = [entry.speedup.get(name) for name in baselines]
        table.add_row(
            f"{entry.rank}",
            safe(entry.user, 40, "bold" if entry.rank == 1 else ""),
            score,
            *("–" if ratio is None else speedup(ratio) for ratio in ratios),
            roofline_share(entry.sol, bar=True),
            entry.language,
            entry.created_at[:10],
            f"{entry.result_id}",
        )
    return table


def _nobody(problem: Problem, gpu: str | None, recorded: int) -> str:
    where = f" on a GPU named like '{gpu}'" if gpu else ""
    more = (
        f" The board holds {recorded} results of {problem.name} that do not rank:"
        " made on a CPU, not accepted, or of another version of the problem."
        if recorded
        else ""
    )
    return f"No ranked result for this version of {problem.name}{where} yet.{more}"
