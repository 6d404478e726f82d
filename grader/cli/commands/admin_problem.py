"""`grade admin problem`: problems that are added or changed while a server runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from grader.cli.options import json_option
from grader.cli.output.admin_output import api_command, print_done

if TYPE_CHECKING:
    from grader.cli.remote import Client

POLL_S = 2.0
"""Interval at which the server is asked how far a reload is."""

PATH = "/admin/problems/reload"


@click.group()
def problem() -> None:
    """Add and change problems while the server runs."""


@problem.command()
@click.argument("names", metavar="[PROBLEM]...", nargs=-1)
@click.option("--preview", is_flag=True, help="Only show what would change.")
@json_option
@api_command
def reload(client: Client, names: tuple[str, ...], preview: bool, as_json: bool) -> int:
    """Verify what has changed in the server's folder of problems, and take what holds.

    Put the folder of each problem there first: scp, git pull. All that changed is taken, or only
    each PROBLEM. The check is that of `grade verify` on a CPU, without examples, and may take
    minutes; the command waits. A problem whose check does not hold, or whose folder is gone, stays
    as it was. Submissions that wait for an old version are held. Exit status: 0 if all were taken,
    1 if not.
    """
    from grader.cli.output.terminal import print_json

    found = client.request("GET", PATH)
    if preview:
        if as_json:
            print_json(found)
        else:
            _print_changes(found)
        return 0
    if not as_json:
        _print_changes(found)
    run = client.request("POST", PATH, json={"problems": list(names) or None})
    while run["ended_at"] is None:
        time.sleep(POLL_S)
        run = client.request("GET", PATH)["last"]
    if as_json:
        print_json(run)
    else:
        _print_run(run)
    return 0 if run["ok"] else 1


def _print_changes(found: dict[str, Any]) -> None:
    from grader.cli.output.terminal import safe_text, stdout

    console = stdout()
    if not found["changes"]:
        console.print(safe_text(f"{found['folder']}: nothing has changed", 300), soft_wrap=True)
    for one in found["changes"]:
        console.print(safe_text(f"{one['problem']}: {_kind(one)}", 300, "bold"), soft_wrap=True)
        for change in one["changes"]:
            console.print("  ", safe_text(change, 500), soft_wrap=True)


def _kind(change: dict[str, Any]) -> str:
    """What a change does, in words."""
    waiting = change["waiting"]
    held = f"; {waiting} waiting submissions would be held" if waiting else ""
    number = change["version"]
    return {
        "new": "a new problem",
        "version": f"opens a new ranking, version {number}{held}",
        "returning": f"version {number} returns with its results{held}",
        "texts": "only texts have changed",
        "missing": "not in the folder; its board stays until a restart",
        "broken": "cannot be loaded, so it stays as it is",
    }.get(change["kind"], str(change["kind"]))


def _print_run(run: dict[str, Any]) -> None:
    from grader.cli.output.terminal import safe_text, stdout

    console = stdout()
    for one in run["problems"]:
        is_taken = one["state"] == "taken"
        text = "verified and taken" if is_taken else "NOT taken"
        style = "bold green" if is_taken else "bold red"
        console.print(safe_text(f"{one['problem']}: {text}", 200, style))
        for finding in one["findings"]:
            console.print("  ", safe_text(finding, 500), soft_wrap=True)
        if one["output"] and not is_taken:
            console.print(safe_text(one["output"], 20_000, "dim"), soft_wrap=True)
    for note in run["notes"]:
        print_done(note)
