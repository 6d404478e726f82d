"""`grade admin board versions`: versions of problems, and which the next start opens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grader.cli.options import json_option
from grader.cli.output.admin_output import api_command
from grader.cli.remote import path_segment

if TYPE_CHECKING:
    from rich.text import Text

    from grader.cli.output.text_tables import ResponsiveTable
    from grader.cli.remote import Client
    from grader.problem import Problem


@click.command()
@click.argument("problem", required=False)
@click.option(
    "--problems",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Compare with the problems in this folder, which the server will read at its next start.",
)
@json_option
@api_command
def versions(client: Client, problem: str | None, folder: Path | None, as_json: bool) -> None:
    """List the versions of PROBLEM, or of all problems. Each has a ranking of its own.

    With --problems, show which problems of that folder would open a new ranking, and by which
    changes: of the spec, reference.py, inputs.py and checks.py. Texts and comments in the spec
    change no version.
    """
    from grader.cli.output.terminal import print_json, stdout

    served = [one["name"] for one in client.request("GET", "/problems")["problems"]]
    found = {} if folder is None else _load(folder)
    names = [problem] if problem else sorted({*served, *found})
    boards = []
    for name in names:
        board: dict[str, Any] = {"problem": name, "versions": [], "current": None}
        if name in served or name not in found:  # the server says what it has
            board = client.request("GET", f"/admin/boards/{path_segment(name)}/versions")
        boards.append(board)
    nexts = {
        board["problem"]: _next(board, found.get(board["problem"])) for board in boards if folder
    }
    if as_json:
        shown = [
            {key: board[key] for key in ("problem", "versions")}
            | ({"next": nexts[board["problem"]]} if folder else {})
            for board in boards
        ]
        print_json({"problems": shown})
        return
    stdout().print(_table(boards))
    for name, after in nexts.items():
        for line in _described(name, after):
            stdout().print(line, soft_wrap=True)


def _load(folder: Path) -> dict[str, Problem]:
    """The problems in a folder by name. Raises click.UsageError if there are none."""
    from grader.problem import Problem

    loaded = [Problem.load(spec.parent) for spec in sorted(folder.glob("*/problem.yaml"))]
    if not loaded:
        raise click.UsageError(f"--problems: {folder} holds no problem")
    return {problem.name: problem for problem in loaded}


def _next(board: dict[str, Any], found: Problem | None) -> dict[str, Any] | None:
    """What the server would have after a start with a problem; None if the folder lacks it."""
    from grader.problem import JudgedVersion

    if found is None:
        return None
    current = board["current"]
    changes = []
    if current is not None:
        served = JudgedVersion(found.name, current["spec"], current["files"])
        changes = found.judged.changes_since(served)
    known = next((one for one in board["versions"] if one["digest"] == found.digest), None)
    return {
        "digest": found.digest,
        "version": known["number"] if known else len(board["versions"]) + 1,
        "is_current": bool(known and known["is_current"]),
        "opens_new_ranking": known is None,
        "results": known["results"] if known else 0,
        "changes": changes,
    }


def _table(boards: list[dict[str, Any]]) -> ResponsiveTable:
    """A row for each version that a server has."""
    from rich.text import Text

    from grader.board.versions import DIGEST_CHARS
    from grader.cli.output.admin_output import utc_day
    from grader.cli.output.terminal import safe_text
    from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column

    rows = [(board["problem"], one) for board in boards for one in board["versions"]]
    return ResponsiveTable(
        [
            TableColumn("problem", [safe_text(name, 64) for name, _ in rows]),
            number_column("version", [Text(f"{one['number']}") for _, one in rows]),
            TableColumn("", [Text("current" if one["is_current"] else "") for _, one in rows]),
            number_column("results", [Text(f"{one['results']}") for _, one in rows]),
            number_column("users ranked", [Text(f"{one['users']}") for _, one in rows], 1),
            TableColumn("first", [Text(utc_day(one["first_at"])) for _, one in rows], 2),
            TableColumn("last", [Text(utc_day(one["last_at"])) for _, one in rows], 2),
            TableColumn("digest", [Text(one["digest"][:DIGEST_CHARS]) for _, one in rows], 3),
        ]
    )


def _described(name: str, after: dict[str, Any] | None) -> list[Text]:
    """Lines on what the next start does to a problem."""
    from rich.text import Text

    from grader.board.versions import counted
    from grader.cli.output.terminal import safe_text

    if after is None:
        return [safe_text(f"{name}: not in this folder, so its board would disappear", 200, "red")]
    if after["is_current"]:
        return [safe_text(f"{name}: no new ranking", 200, "dim")]
    if not after["opens_new_ranking"]:
        text = f"{name}: version {after['version']} returns with its {counted(after['results'])}"
    elif after["version"] == 1:
        text = f"{name}: a new problem"
    else:
        text = f"{name}: opens a new ranking, version {after['version']}"
    lines = [safe_text(text, 200, "bold yellow")]
    return lines + [Text("  ") + safe_text(change, 300) for change in after["changes"]]
