"""`grade admin rejudge`: grade results again, preview the changes, and apply or drop them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grader.cli.options import json_option
from grader.cli.output.admin_output import (
    Field,
    api_command,
    print_done,
    print_rows,
    print_table,
    utc_minute,
)

if TYPE_CHECKING:
    from grader.cli.remote import Client


@click.group()
def rejudge() -> None:
    """Grade results again, preview the changes, and apply or drop them."""


@rejudge.command("start")
@click.argument("problem")
@click.argument("numbers", metavar="[ID]...", type=int, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All accepted submissions.")
@click.option(
    "--worker",
    metavar="NAME",
    help="Every result of this worker, such as farm/host; or of all workers of the user farm.",
)
@click.option("--reason", default="", help="Text for the audit log.")
@json_option
@api_command
def rejudge_start(
    client: Client,
    problem: str,
    numbers: tuple[int, ...],
    everything: bool,
    worker: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """Grade submissions of PROBLEM again: the given IDs, a worker's, or each user's best.

    Live submissions are graded first. The board does not change before `apply`.
    """
    from grader.cli.output.terminal import print_json, print_note

    if bool(numbers) + everything + (worker is not None) > 1:
        raise click.UsageError("give submission IDs, --all or --worker, and only one of them")
    body: dict[str, Any] = {"problem": problem, "reason": reason}
    if numbers:
        body["submissions"] = list(numbers)
    elif worker is not None:
        body["worker"] = worker
    elif everything:
        body["which"] = "accepted"
    new = client.request("POST", "/admin/rejudges", json=body)
    if as_json:
        print_json(new)
        return
    print_done(f"rejudge {new['id']} is queued; see it with grade admin rejudge show {new['id']}")
    if left_out := new.get("without_source"):
        print_note(f"left out, since their sources were removed: {left_out}")


@rejudge.command("list")
@json_option
@api_command
def rejudge_list(client: Client, as_json: bool) -> None:
    """List the rejudges, newest first."""
    columns: dict[str, Field] = {
        "rejudge": "id",
        "problem": "problem",
        "state": "state",
        "graded": lambda row: f"{row['done']} of {row['total']}",
        "started": lambda row: utc_minute(row["created_at"]),
        "by": "by",
        "reason": "reason",
    }
    print_rows(client.request("GET", "/admin/rejudges"), "rejudges", as_json, columns)


@rejudge.command("show")
@click.argument("number", metavar="ID", type=int)
@json_option
@api_command
def rejudge_show(client: Client, number: int, as_json: bool) -> None:
    """Show the old and the new verdict, score and rank of each submission."""
    answer = client.request("GET", f"/admin/rejudges/{number}")
    rows = [
        (
            change["original_id"],
            change["user"],
            *_result_cells(change["old"]),
            *(_result_cells(change["new"]) if change["new"] else (change["state"], "", "")),
        )
        for change in answer["changes"]
    ]
    headings = ("id", "user", "old verdict", "score", "rank", "new verdict", "score", "rank")
    print_table(answer, as_json, headings, rows)
    if not as_json:
        summary = answer["rejudge"]
        print_done(
            f"rejudge {number} is in state {summary['state']}: "
            f"{summary['done']} of {summary['total']} graded"
        )


@rejudge.command("apply")
@click.argument("number", metavar="ID", type=int)
@api_command
def rejudge_apply(client: Client, number: int) -> None:
    """Replace the old results on the board by the new ones, all at once; the old ones are kept."""
    exchanged = client.request("POST", f"/admin/rejudges/{number}/apply")["exchanged"]
    print_done(f"results replaced: {exchanged}")


@rejudge.command("drop")
@click.argument("number", metavar="ID", type=int)
@api_command
def rejudge_drop(client: Client, number: int) -> None:
    """Discard the new results; the board stays as it is."""
    client.request("POST", f"/admin/rejudges/{number}/drop")
    print_done(f"rejudge {number} is dropped")


def _result_cells(result: dict[str, Any]) -> tuple[str, str, str]:
    from grader.cli.output.render import micros

    score = "" if result["score_us"] is None else micros(result["score_us"])
    return result["verdict"], score, "" if result["rank"] is None else str(result["rank"])
