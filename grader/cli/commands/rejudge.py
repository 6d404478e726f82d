"""`grade admin rejudge`: grade results anew, look at what would change, and decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grader.cli.options import json_option
from grader.cli.output.admin_output import calls, emit, moment, say, show

if TYPE_CHECKING:
    from grader.cli.remote import Client


@click.group()
def rejudge() -> None:
    """Grade results anew, look at what would change, and decide."""


@rejudge.command("start")
@click.argument("problem")
@click.argument("numbers", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Everything that was accepted.")
@click.option("--reason", default="", help="For the audit.")
@json_option
@calls
def rejudge_start(
    client: Client,
    problem: str,
    numbers: tuple[int, ...],
    everything: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Grade submissions of PROBLEM anew: those of these IDs, or else each user's best.

    They are graded behind live submissions, and nothing changes on the board before `apply`.
    """
    if numbers and everything:
        raise click.UsageError("name submissions, or say --all, not both")
    asked: dict[str, Any] = {"problem": problem, "reason": reason}
    if numbers:
        asked["submissions"] = list(numbers)
    elif everything:
        asked["which"] = "accepted"
    new = client.request("POST", "/admin/rejudges", json=asked)
    if as_json:
        emit(new)
    else:
        say(f"rejudge {new['id']} is queued; `grade admin rejudge show {new['id']}` to look")


@rejudge.command("list")
@json_option
@calls
def rejudge_list(client: Client, as_json: bool) -> None:
    """List the rejudges, newest first."""
    found = client.request("GET", "/admin/rejudges")
    rows = (
        (
            str(one["id"]),
            one["problem"],
            one["state"],
            f"{one['done']} of {one['total']}",
            moment(one["created_at"]),
            one["by"],
            one["reason"],
        )
        for one in found["rejudges"]
    )
    headings = ("rejudge", "problem", "state", "graded", "started", "by", "reason")
    show(found, as_json, headings, rows)


@rejudge.command("show")
@click.argument("number", metavar="ID", type=int)
@json_option
@calls
def rejudge_show(client: Client, number: int, as_json: bool) -> None:
    """Show the verdict, score and rank of each submission, old and new."""
    found = client.request("GET", f"/admin/rejudges/{number}")
    rows = (
        (
            str(one["original_id"]),
            one["user"],
            *_outcome(one["old"]),
            *(_outcome(one["new"]) if one["new"] else (one["state"], "", "")),
        )
        for one in found["changes"]
    )
    headings = ("id", "user", "was", "score", "rank", "now", "score", "rank")
    show(found, as_json, headings, rows)
    if not as_json:
        told = found["rejudge"]
        say(f"rejudge {number} is {told['state']}: {told['done']} of {told['total']} graded")


@rejudge.command("apply")
@click.argument("number", metavar="ID", type=int)
@calls
def rejudge_apply(client: Client, number: int) -> None:
    """Let the new results count, all at once; the old ones are kept, and do not count."""
    exchanged = client.request("POST", f"/admin/rejudges/{number}/apply")["exchanged"]
    say(f"results exchanged: {exchanged}")


@rejudge.command("drop")
@click.argument("number", metavar="ID", type=int)
@calls
def rejudge_drop(client: Client, number: int) -> None:
    """Leave everything as it was."""
    client.request("POST", f"/admin/rejudges/{number}/drop")
    say(f"rejudge {number} is dropped")


def _outcome(one: dict[str, Any]) -> tuple[str, str, str]:
    from grader.cli.output.render import micros

    score = "" if one["score_us"] is None else micros(one["score_us"])
    return one["verdict"], score, "" if one["rank"] is None else str(one["rank"])
