"""`grade admin similar`: sources on a server's board that are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grader.cli.options import json_option
from grader.cli.output.admin_output import Field, Row, api_command, print_done, print_rows
from grader.cli.remote import path_segment

if TYPE_CHECKING:
    from grader.cli.remote import Client


@click.command()
@click.argument("problem")
@click.option(
    "--min",
    "least",
    type=click.FloatRange(0.1, 1),
    default=0.6,
    show_default=True,
    help="The least similarity to list.",
)
@json_option
@api_command
def similar(client: Client, problem: str, least: float, as_json: bool) -> None:
    """List pairs of different users' best sources for PROBLEM that are alike.

    Sources are compared by their tokens: names, layout and comments do not count, nor what the
    starter and the reference have. The similarity is the share of the shorter source that the other
    has. It is no proof: /submissions/ONE/compare/OTHER shows both side by side.
    """
    found = _report(client, problem, least)
    columns: dict[str, Field] = {
        "alike": lambda row: f"{row['similarity']:.0%}",
        "one": lambda row: _named(row["left"]),
        "other": lambda row: _named(row["right"]),
        "side by side": lambda row: (
            f"{client.server}/submissions/{row['left']['submission_id']}"
            f"/compare/{row['right']['submission_id']}"
        ),
    }
    print_rows(found, "pairs", as_json, columns)
    left_out = [
        f"{found[key]} {text}"
        for key, text in (("too_short", "too short to tell"), ("unreadable", "unreadable"))
        if found[key]
    ]
    counted = f"{found['compared']} of {found['sources']} sources compared"
    print_done("; ".join([counted, *left_out]))
    if not found["complete"]:
        print_done("the server's time was too short for the others; run the command again")


def _report(client: Client, problem: str, least: float) -> dict[str, Any]:
    """The server's report. It is asked again while it gets further: it keeps what it has read."""
    path = f"/admin/similar/{path_segment(problem)}"
    compared = -1
    while True:
        found: dict[str, Any] = client.request("GET", path, params={"min": least})
        if found["complete"] or found["compared"] <= compared:
            return found
        compared = found["compared"]


def _named(source: Row) -> str:
    return f"{source['user']}, #{source['submission_id']}, rank {source['rank']}"
