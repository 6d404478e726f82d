"""`grade queue`, `cancel`, `withdraw` and `download`: a competitor's submissions on a server."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grader.cli.options import json_option, remote_option, result_number

if TYPE_CHECKING:
    from grader.cli.output.text_tables import ResponsiveTable

FINISHED = ("done", "cancelled")


@click.command()
@click.option("--user", metavar="NAME", help="Only the submissions of this user.")
@click.option("--problem", metavar="PROBLEM", help="Only submissions to this problem.")
@remote_option
@json_option
def queue(user: str | None, problem: str | None, server: str | None, as_json: bool) -> None:
    """List what a server grades now and what waits, next first."""
    from grader.cli.output.terminal import print_json, stdout
    from grader.cli.remote import Client, problem_name

    wanted = None if problem is None else problem_name(problem)
    with Client.find(server, needs_token=False) as client:
        jobs = client.request("GET", "/queue")["jobs"]
    found = [
        job for job in jobs if user in (None, job["user"]) and wanted in (None, job["problem"])
    ]
    if as_json:
        print_json({"jobs": found})
    elif found:
        stdout().print(_queue_table(found))
    else:
        stdout().print("nothing is graded, and nothing waits")


@click.command()
@click.argument("number", metavar="SUBMISSION")
@remote_option
@json_option
def cancel(number: str, server: str | None, as_json: bool) -> None:
    """Cancel your SUBMISSION, such as 12 or '#12', which waits or is being graded.

    A submission that is done is left as it is.
    """
    from grader.cli.output.terminal import print_json, print_note
    from grader.cli.remote import Client

    chosen = _number(number)
    with Client.find(server) as client:
        # The same request of an admin's token would delete a submission that is done.
        state = client.request("GET", f"/submissions/{chosen}")["state"]
        if state in FINISHED:
            raise click.UsageError(f"submission {chosen} is {state} already")
        client.request("DELETE", f"/submissions/{chosen}")
    if as_json:
        print_json({"id": chosen, "state": "cancelled"})
    else:
        print_note(f"cancelled submission {chosen}")


@click.command()
@click.argument("number", metavar="SUBMISSION")
@click.option("--undo", is_flag=True, help="Let the withdrawn result count again.")
@remote_option
@json_option
def withdraw(number: str, undo: bool, server: str | None, as_json: bool) -> None:
    """Take the result of your SUBMISSION, such as 12 or '#12', off the board.

    Your next best result counts then. Until the board's deadline, --undo takes it back.
    """
    from grader.cli.output.terminal import print_json, print_note
    from grader.cli.remote import Client

    chosen = _number(number)
    with Client.find(server) as client:
        client.request("POST", f"/submissions/{chosen}/{'restore' if undo else 'withdraw'}")
    if as_json:
        print_json({"id": chosen, "withdrawn": not undo})
    else:
        what = "is no longer withdrawn" if undo else "is withdrawn; --undo takes that back"
        print_note(f"submission {chosen} {what}")


@click.command()
@click.argument("number", metavar="SUBMISSION")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write [default: submission-NUMBER.py or .cu, in this folder].",
)
@remote_option
@json_option
def download(number: str, output: Path | None, server: str | None, as_json: bool) -> None:
    """Download the source of SUBMISSION, such as 12 or '#12': yours, or one that is published."""
    from grader.cli.output.terminal import print_json, print_note
    from grader.cli.remote import Client
    from grader.submission import LANGUAGES

    chosen = _number(number)
    with Client.find(server, needs_token=False) as client:
        source, name = client.content(f"/submissions/{chosen}/source")
    # Of the server's name only a known ending is used: it chooses no path here.
    ending = Path(name).suffix if Path(name).suffix in LANGUAGES else ".txt"
    path = output or Path(f"submission-{chosen}{ending}")
    try:
        with path.open("xb") as file:
            file.write(source)
    except FileExistsError:
        raise click.UsageError(f"{path} already exists; choose another file with -o") from None
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written ({error.strerror})") from None
    if as_json:
        digest = hashlib.sha256(source).hexdigest()
        print_json({"id": chosen, "file": str(path), "submission_sha256": digest})
    else:
        print_note(f"wrote {path}")


def _number(text: str) -> int:
    """The number of a submission. Raises click.UsageError for other text."""
    number = result_number(text)
    if number is None:
        raise click.UsageError(f"'{text}' is not a submission's number; write 12 or '#12'")
    return number


def _queue_table(jobs: list[dict[str, Any]]) -> ResponsiveTable:
    from rich.text import Text

    from grader.cli.output.terminal import safe_text
    from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column
    from grader.cli.remote_board import state_text

    return ResponsiveTable(
        [
            number_column("place", [Text(f"{job['position'] or 'now'}") for job in jobs]),
            number_column("submission", [Text(f"#{job['id']}", "bold") for job in jobs]),
            TableColumn("user", [safe_text(job["user"], 40) for job in jobs]),
            TableColumn("problem", [safe_text(job["problem"], 64) for job in jobs], 1),
            TableColumn("state", [safe_text(state_text(job), 60) for job in jobs], 2),
            TableColumn("why it waits", [safe_text(job["obstacle"] or "", 80) for job in jobs], 3),
        ]
    )
