"""What the commands of `grade admin` and `grade token` share: the client of the server, and how
answers are printed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

Row = Mapping[str, Any]
"""One object of a list in an API's answer."""
Field = str | Callable[[Row], object]
"""Name of a field of a row, or a function that makes the cell from the row."""


def api_command(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Pass the client of the server to a command as its first argument, and add ``--server``. What
    it returns is the exit status."""

    @click.option(
        "--server",
        metavar="URL",
        help="The server [default: $GRADE_SERVER, or the server of the last login].",
    )
    @functools.wraps(function)
    def run(*args: Any, server: str | None, **options: Any) -> int | None:
        from grader.cli.remote import Client

        with Client.find(server) as client:
            return function(client, *args, **options)

    return run


def utc_day(at: str | None) -> str:
    """The date of an ISO 8601 time in UTC; empty for None."""
    return "" if at is None else at[:10]


def utc_minute(at: str | None) -> str:
    """An ISO 8601 time in UTC, to the minute; empty for None."""
    return "" if at is None else f"{at[:10]} {at[11:16]} UTC"


TOKEN_COLUMNS: Mapping[str, Field] = {
    "token": "id",
    "label": "label",
    "since": lambda row: utc_day(row["created_at"]),
    "last used": lambda row: utc_minute(row["last_used_at"]),
    "revoked": lambda row: utc_day(row["revoked_at"]),
}
"""The columns of a list of tokens."""


def print_rows(
    answer: dict[str, Any], key: str, as_json: bool, columns: Mapping[str, Field]
) -> None:
    """Print the list ``answer[key]`` as a table, or the whole answer as JSON.

    columns: heading → field of the cell; None is an empty cell.
    """
    cells = [
        [row[field] if isinstance(field, str) else field(row) for field in columns.values()]
        for row in answer[key]
    ]
    print_table(answer, as_json, columns, cells)


def print_table(
    answer: dict[str, Any],
    as_json: bool,
    headings: Iterable[str],
    rows: Iterable[Iterable[object]],
) -> None:
    """Print an API's answer as JSON, or these rows as a table; None is an empty cell."""
    from grader.cli.output.terminal import print_json, safe_text, stdout

    if as_json:
        print_json(answer)
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(safe_text(heading))
    for row in rows:
        table.add_row(*(safe_text("" if cell is None else str(cell)) for cell in row))
    stdout().print(table if table.row_count else "none")


def print_token(new: dict[str, str], as_json: bool) -> None:
    """Print a new token, which is shown only this once."""
    from grader.cli.output.terminal import print_json

    if as_json:
        print_json(new)
        return
    print(new["token"], flush=True)
    print_done(f"this token of {new['name']} is shown only this once; hand it over safely")


def print_done(text: str) -> None:
    """Report on stderr what a command did."""
    from grader.cli.output.terminal import print_note

    print_note(text)
