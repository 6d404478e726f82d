"""`grade admin`: users, tokens, boards, held jobs, rejudges and the audit of a server, over its
API."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from grader.cli.commands.rejudge import rejudge
from grader.cli.options import json_option
from grader.cli.output.admin_output import calls, day, emit, moment, say, show, step

if TYPE_CHECKING:
    from grader.cli.remote import Client


@click.group()
def admin() -> None:
    """Run a server: users, boards, held jobs, rejudges.

    Every command speaks to the server's API with an admin's token: that of GRADE_TOKEN, or the one
    that `grade login` has stored. Everything that changes something is noted in the audit.
    """


admin.add_command(rejudge)


@admin.group()
def user() -> None:
    """Add, list and ban users."""


@user.command("add")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["competitor", "worker", "admin"]),
    default="competitor",
    show_default=True,
)
@json_option
@calls
def user_add(client: Client, name: str, role: str, as_json: bool) -> None:
    """Add the user NAME and print a token, which is never shown again."""
    new = client.request("POST", "/admin/users", json={"name": name, "role": role})
    _tell_token(new, as_json)


@user.command("list")
@json_option
@calls
def user_list(client: Client, as_json: bool) -> None:
    """List the users."""
    found = client.request("GET", "/admin/users")
    rows = (
        (
            one["name"],
            one["role"],
            day(one["created_at"]),
            moment(one["last_used_at"]),
            f"{day(one['banned_at'])} {one['banned_reason']}" if one["banned_at"] else "",
        )
        for one in found["users"]
    )
    show(found, as_json, ("user", "role", "since", "last seen", "banned"), rows)


@user.command("ban")
@click.argument("name")
@click.option("--reason", default="", help="What the user is told.")
@calls
def user_ban(client: Client, name: str, reason: str) -> None:
    """Shut NAME out, end what is in flight, and take every result off the boards."""
    client.request("POST", f"/admin/users/{step(name)}/ban", json={"reason": reason})
    say(f"{name} is banned; `grade admin user unban {name}` takes it back")


@user.command("unban")
@click.argument("name")
@calls
def user_unban(client: Client, name: str) -> None:
    """Let NAME in again; the results count again."""
    client.request("POST", f"/admin/users/{step(name)}/unban")
    say(f"{name} is let in again")


@admin.group()
def token() -> None:
    """Make, list and revoke tokens."""


@token.command("new")
@click.argument("name")
@click.option("--label", default="", help="What it is for.")
@json_option
@calls
def token_new(client: Client, name: str, label: str, as_json: bool) -> None:
    """Print one more token of the user NAME, which is never shown again."""
    new = client.request("POST", f"/admin/users/{step(name)}/tokens", json={"label": label})
    _tell_token(new, as_json)


@token.command("list")
@click.argument("name")
@json_option
@calls
def token_list(client: Client, name: str, as_json: bool) -> None:
    """List the tokens of the user NAME, by number."""
    found = client.request("GET", f"/admin/users/{step(name)}/tokens")
    rows = (
        (
            str(one["id"]),
            one["label"],
            day(one["created_at"]),
            moment(one["last_used_at"]),
            day(one["revoked_at"]),
        )
        for one in found["tokens"]
    )
    show(found, as_json, ("token", "label", "since", "last used", "revoked"), rows)


@token.command("revoke")
@click.argument("name", required=False)
@click.option("--id", "number", type=int, help="Only the token of this number.")
@calls
def token_revoke(client: Client, name: str | None, number: int | None) -> None:
    """End all tokens of the user NAME, or one by its number, with the sessions they opened."""
    if (not name) == (number is None):
        raise click.UsageError("name a user, or one token with --id")
    path = f"/admin/users/{step(name)}/tokens" if name else f"/admin/tokens/{number}"
    say(f"tokens and sessions ended: {client.request('DELETE', path)['ended']}")


@admin.group()
def board() -> None:
    """Deadlines, hidden boards, published sources."""


@board.command("show")
@click.argument("problem")
@json_option
@calls
def board_show(client: Client, problem: str, as_json: bool) -> None:
    """Show the settings of PROBLEM's board."""
    _tell_board(client.request("GET", f"/admin/boards/{step(problem)}"), as_json)


@board.command("set")
@click.argument("problem")
@click.option("--deadline", metavar="ISO|none", help="Such as 2030-05-01T23:59+02:00.")
@click.option("--hide/--show", "hidden", default=None, help="Whether only admins see the board.")
@click.option(
    "--publish-sources/--private-sources",
    default=None,
    help="Whether everyone may read sources, after the deadline if there is one.",
)
@click.option("--note", help="One line for competitors; '' for none.")
@json_option
@calls
def board_set(
    client: Client,
    problem: str,
    deadline: str | None,
    hidden: bool | None,
    publish_sources: bool | None,
    note: str | None,
    as_json: bool,
) -> None:
    """Change settings of PROBLEM's board; what is not named stays."""
    path = f"/admin/boards/{step(problem)}"
    changes: dict[str, Any] = {}
    if deadline is not None:
        changes["deadline"] = None if deadline == "none" else _deadline(deadline)
    for name, value in (("hidden", hidden), ("publish_sources", publish_sources), ("note", note)):
        if value is not None:
            changes[name] = value or None if name == "note" else value
    if not changes:
        raise click.UsageError("nothing to set; see --help")
    now = client.request("GET", path)
    del now["problem"]
    _tell_board(client.request("PUT", path, json=now | changes), as_json)


@admin.command()
@json_option
@calls
def held(client: Client, as_json: bool) -> None:
    """List what failed, or killed its workers, so often that a person must look."""
    found = client.request("GET", "/admin/held")
    rows = (
        (
            str(one["id"]),
            one["user"],
            one["problem"],
            one["name"],
            moment(one["submitted_at"]),
            one["reason"] or "",
        )
        for one in found["held"]
    )
    show(found, as_json, ("id", "user", "problem", "file", "submitted", "why"), rows)


@admin.command()
@click.argument("number", metavar="ID", type=int)
@calls
def release(client: Client, number: int) -> None:
    """Queue the held submission ID again."""
    client.request("POST", f"/admin/submissions/{number}/release")
    say(f"submission {number} is queued again")


@admin.command()
@click.argument("number", metavar="ID", type=int)
@calls
def delete(client: Client, number: int) -> None:
    """Cancel the submission ID, or take it off the board and out of sight when it is done."""
    became = client.request("DELETE", f"/admin/submissions/{number}")["became"]
    say(f"submission {number} is {became}")


@admin.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", type=int, help="Go on below this number.")
@json_option
@calls
def audit(client: Client, limit: int, before: int | None, as_json: bool) -> None:
    """Show what admins did, newest first."""
    params = {"limit": limit} | ({} if before is None else {"before": before})
    found = client.request("GET", "/admin/audit", params=params)
    rows = (
        (
            str(one["id"]),
            moment(one["at"]),
            one["actor"],
            one["action"],
            one["subject"],
            one["detail"],
        )
        for one in found["acts"]
    )
    show(found, as_json, ("no.", "when", "who", "what", "to", "detail"), rows)


def _deadline(text: str) -> str:
    """A moment with its time zone. Raises click.UsageError."""
    try:
        until = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--deadline: '{text}' is no time; write it like 2030-05-01T23:59+02:00, or none"
        ) from None
    if until.tzinfo is None:
        raise click.UsageError(
            f"--deadline: in which time zone? Write {until.isoformat()}Z for UTC"
        )
    return until.isoformat()


def _tell_token(new: dict[str, str], as_json: bool) -> None:
    if as_json:
        emit(new)
        return
    print(new["token"], flush=True)
    say(f"this is the only time that this token of {new['name']} is shown; hand it over safely")


def _tell_board(settings: dict[str, Any], as_json: bool) -> None:
    shown = (
        ("deadline", moment(settings["deadline"]) or "none"),
        ("board", "hidden" if settings["hidden"] else "shown"),
        ("sources", "published" if settings["publish_sources"] else "private"),
        ("note", settings["note"] or ""),
    )
    show(settings, as_json, (settings["problem"], ""), shown)
