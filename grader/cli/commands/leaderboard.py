"""`grade leaderboard`: the ranking of a problem, per GPU."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

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
    from grader.board import BoardEntry, ListedResult, ProblemVersion
    from grader.cli.output.text_tables import ResponsiveTable
    from grader.problem import Problem

UNRANKED_ROWS = 5
"""Results that do not rank, of which the newest are listed."""

OTHER_VERSIONS = 10
"""Other versions with results, of which the newest are listed."""


@click.command()
@click.argument("problem")
@click.option("--gpu", metavar="NAME", help="Only GPUs whose name contains this text.")
@click.option(
    "--version",
    "version_text",
    metavar="N|DIGEST",
    help="Another version of the problem: its number, or 6 or more characters of its digest.",
)
@board_server_option
@db_option
@json_option
@click.pass_obj
def leaderboard(
    deps: Dependencies,
    problem: str,
    gpu: str | None,
    version_text: str | None,
    server: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Show the best accepted result of each user for PROBLEM, fastest first, per GPU.

    Results whose confidence intervals overlap the leader's share a rank. The newest results that do
    not rank follow, with the reason, and the other versions of the problem that have results.

    With --server, the ranking is that of the server, and a result is known by its submission;
    `grade results --server` lists yours that do not rank.
    """
    if server:
        refuse_local_options("reading the board of this machine", db="db")
        _show_remote(server, problem, gpu, version_text, as_json)
        return
    from grader.board import NoSuchVersion, choose_version
    from grader.board.versions import version_of
    from grader.cli.commands.results import results_table
    from grader.cli.output.terminal import print_json, stdout

    found = find_problem(problem, deps)
    with closing(deps.board(db)) as board:
        versions = board.versions(found.name, found.digest)
        try:
            shown = (
                version_of(versions, found.digest)
                if version_text is None
                else choose_version(versions, version_text)
            )
        except NoSuchVersion as error:
            raise click.UsageError(f"--version {version_text}: {error}") from None
        names = [n for n in board.gpus(shown.digest) if gpu is None or gpu.lower() in n.lower()]
        boards = {name: board.leaderboard(shown.digest, name) for name in names}
        is_current = shown.digest == found.digest
        unranked = board.unranked(
            found.name, shown.digest, gpu, most=UNRANKED_ROWS + 1, of_version=not is_current
        )
    others = [one for one in reversed(versions) if one.results and one is not shown]
    if as_json:
        print_json(_as_json(found, shown, boards, unranked[:UNRANKED_ROWS], others))
        return
    console = stdout()
    if not is_current:
        console.print(f"{shown.label} of {found.name}, which is not graded any more\n")
    for name, entries in boards.items():
        console.print(f"{found.spec.title} on {name}\n", style="bold")
        console.print(_table(entries))
    if not boards:
        where = f" on a GPU whose name contains '{gpu}'" if gpu else ""
        console.print(f"No ranked result for this version of {found.name}{where} yet.")
    if unranked:
        console.print("\nNot ranked\n", style="bold")
        console.print(results_table(unranked[:UNRANKED_ROWS], shown.digest))
    if len(unranked) > UNRANKED_ROWS:
        console.print(f"older ones: grade results {found.name}", style="dim")
    if others:
        console.print("\nOther versions\n", style="bold")
        console.print(_versions_table(others[:OTHER_VERSIONS], found.digest))
        console.print(
            f"grade leaderboard {found.name} --version {others[0].number} shows its ranking",
            style="dim",
        )


def _show_remote(
    server: str, problem: str, gpu: str | None, version: str | None, as_json: bool
) -> None:
    """The ranking on a server."""
    from grader.cli.output.admin_output import utc_minute
    from grader.cli.output.terminal import print_json, safe_text, stdout
    from grader.cli.remote import Client, problem_name
    from grader.cli.remote_board import entries_json, read_leaderboards

    name = problem_name(problem)
    with Client.find(server, needs_token=False) as client:
        shown, boards, others, frozen_since = read_leaderboards(client, name, gpu, version)
    if as_json:
        print_json(
            {
                "problem": name,
                "problem_digest": shown.digest if shown else None,
                "version": shown.number if shown else None,
                "leaderboards": entries_json(boards),
                "unranked": [],
                "other_versions": [_version_fields(one) for one in others],
            }
        )
        return
    console = stdout()
    if frozen_since:
        text = f"frozen since {utc_minute(frozen_since)}; final standings follow\n"
        console.print(safe_text(text, 100), soft_wrap=True)
    for gpu_name, entries in boards.items():
        console.print(safe_text(f"{name} on {gpu_name}\n", 200, "bold"))
        console.print(_table(entries, "submission"))
    if not boards:
        where = f" on a GPU whose name contains '{gpu}'" if gpu else ""
        text = f"No ranked result for this version of {name}{where} yet."
        console.print(safe_text(text, 300), soft_wrap=True)
    if others:
        console.print("\nOther versions\n", style="bold")
        console.print(_versions_table(others[:OTHER_VERSIONS], ""))


def _as_json(
    problem: Problem,
    shown: ProblemVersion,
    boards: dict[str, list[BoardEntry]],
    unranked: list[ListedResult],
    others: list[ProblemVersion],
) -> dict[str, object]:
    from grader.cli.commands.results import as_json_fields

    leaderboards = [
        {"gpu": gpu, "entries": [asdict(entry) for entry in entries]}
        for gpu, entries in boards.items()
    ]
    return {
        "problem": problem.name,
        "problem_digest": shown.digest,
        "version": shown.number,
        "leaderboards": leaderboards,
        "unranked": [as_json_fields(one, shown.digest) for one in unranked],
        "other_versions": [_version_fields(one) for one in others],
    }


def _version_fields(version: ProblemVersion) -> dict[str, object]:
    moments = {"first_at": version.first_at, "last_at": version.last_at}
    return asdict(version) | {name: at and at.isoformat() for name, at in moments.items()}


def _versions_table(versions: list[ProblemVersion], current: str) -> ResponsiveTable:
    from rich.text import Text

    from grader.board.versions import DIGEST_CHARS
    from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column

    states = ["today's" if one.digest == current else "" for one in versions]
    return ResponsiveTable(
        [
            number_column("version", [Text(f"{one.number}", "bold") for one in versions]),
            TableColumn("", [Text(state) for state in states]),
            number_column("results", [Text(f"{one.results}") for one in versions]),
            number_column("users ranked", [Text(f"{one.users}") for one in versions]),
            TableColumn("first", [Text(f"{one.first_at:%Y-%m-%d}") for one in versions], 1),
            TableColumn("last", [Text(f"{one.last_at:%Y-%m-%d}") for one in versions], 1),
            TableColumn("digest", [Text(one.digest[:DIGEST_CHARS], "dim") for one in versions], 2),
        ]
    )


def _table(entries: list[BoardEntry], numbered: str = "result") -> ResponsiveTable:
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
                numbered, [Text(f"{entry.result_id or '–'}", "dim") for entry in entries], 1
            ),
        ]
    )
