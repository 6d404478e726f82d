"""`grade leaderboard`: who is ahead, per GPU."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Desk
from grader.cli.options import db_option, find_problem, json_option

if TYPE_CHECKING:
    from grader.board import Entry
    from grader.cli.output.tables import Fitting
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
    from grader.cli.output.terminal import emit, out

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
        console.print(f"{found.spec.title} on {name}\n", style="bold")
        console.print(_table(entries))
    if not boards:
        console.print(_nobody(found, gpu, recorded))


def _as_json(problem: Problem, boards: dict[str, list[Entry]]) -> dict[str, object]:
    shown = [
        {"gpu": gpu, "entries": [asdict(entry) for entry in entries]}
        for gpu, entries in boards.items()
    ]
    return {"problem": problem.name, "problem_digest": problem.digest, "leaderboards": shown}


def _table(entries: list[Entry]) -> Fitting:
    from rich.text import Text

    from grader.cli.output.render import interval, micros, share, share_bar, speedup
    from grader.cli.output.tables import Column, Fitting, numbers
    from grader.cli.output.terminal import safe

    baselines = list(dict.fromkeys(name for entry in entries for name in entry.speedup))
    spreads = [interval(entry.score_us, entry.ci_us).strip() for entry in entries]

    def ratio(entry: Entry, name: str) -> Text:
        found = entry.speedup.get(name)
        return Text("–" if found is None else speedup(found))

    return Fitting(
        [
            numbers("rank", [Text(f"{entry.rank}") for entry in entries]),
            Column("user", [safe(e.user, 40, "bold" if e.rank == 1 else "") for e in entries]),
            numbers("score", [Text(micros(entry.score_us)) for entry in entries]),
            Column("", [Text(spread) for spread in spreads], turn=3, style="dim"),
            *(numbers(f"× {name}", [ratio(e, name) for e in entries], 2) for name in baselines),
            numbers("roofline", [share(entry.sol) for entry in entries], turn=4),
            Column("", [share_bar(entry.sol) for entry in entries], turn=7),
            Column("language", [Text(entry.language) for entry in entries], 5, style="dim"),
            Column("when", [Text(entry.created_at[:10]) for entry in entries], 6, style="dim"),
            numbers("result", [Text(f"{entry.result_id}", "dim") for entry in entries], turn=1),
        ]
    )


def _nobody(problem: Problem, gpu: str | None, recorded: int) -> str:
    where = f" on a GPU named like '{gpu}'" if gpu else ""
    more = (
        f" Results of {problem.name} on the board that do not rank: {recorded},"
        " made on a CPU, not accepted, or of another version of the problem."
        if recorded
        else ""
    )
    return f"No ranked result for this version of {problem.name}{where} yet.{more}"
