"""What the commands of `grade admin` share: how they ask the server, and how they show answers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import click


def calls(function: Callable[..., None]) -> Callable[..., None]:
    """Hand a command the client of the server as its first argument, and give it `--server`."""

    @click.option("--server", metavar="URL", help="[default: $GRADE_SERVER, or as you logged in]")
    @functools.wraps(function)
    def run(*args: Any, server: str | None, **options: Any) -> None:
        from grader.cli.remote import Client

        with Client.find(server) as client:
            function(client, *args, **options)

    return run


def step(name: str) -> str:
    """One step of an address."""
    return quote(name, safe="")


def day(at: str | None) -> str:
    """The day of an ISO 8601 moment in UTC; empty for none."""
    return "" if at is None else at[:10]


def moment(at: str | None) -> str:
    """An ISO 8601 moment in UTC, to the minute; empty for none."""
    return "" if at is None else f"{at[:10]} {at[11:16]} UTC"


def show(
    found: dict[str, Any], as_json: bool, headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> None:
    """Print an answer as it came, or as a table."""
    if as_json:
        emit(found)
        return
    from rich import box
    from rich.table import Table

    from grader.cli.output.terminal import out, safe

    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(safe(heading))
    for row in rows:
        table.add_row(*(safe(cell) for cell in row))
    out().print(table if table.row_count else "none")


def say(text: str) -> None:
    """Tell a person what was done, on stderr."""
    from grader.cli.output.terminal import err

    err().print(text, soft_wrap=True)


def emit(found: dict[str, Any]) -> None:
    """Print an answer as it came."""
    from grader.cli.output import terminal

    terminal.emit(json.dumps(found))
