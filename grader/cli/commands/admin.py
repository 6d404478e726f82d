"""`grade admin`: a server's users, tokens, boards, workers, held jobs, rejudges and audit log, over
its API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grader.cli.commands import groups, team
from grader.cli.commands.admin_problem import problem
from grader.cli.commands.admin_similar import similar
from grader.cli.commands.board_versions import versions
from grader.cli.commands.rejudge import rejudge
from grader.cli.options import iso_moment, json_option
from grader.cli.output.admin_output import (
    TOKEN_COLUMNS,
    Field,
    Row,
    api_command,
    print_done,
    print_rows,
    print_table,
    print_token,
    utc_day,
    utc_minute,
)
from grader.cli.remote import path_segment

if TYPE_CHECKING:
    from grader.cli.remote import Client


@click.group()
def admin() -> None:
    """Run a server: users, boards, workers, held jobs, rejudges.

    Each command calls the server's API with an admin's token: GRADE_TOKEN, or the token that
    `grade login` stored. The audit log records every change.
    """


admin.add_command(problem)
admin.add_command(rejudge)
admin.add_command(groups.group)
admin.add_command(groups.invite)
admin.add_command(team.admin_team)
admin.add_command(similar)


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
    help="What the user may do.",
)
@json_option
@api_command
def user_add(client: Client, name: str, role: str, as_json: bool) -> None:
    """Add the user NAME and print a token; it is shown only this once."""
    print_token(client.request("POST", "/admin/users", json={"name": name, "role": role}), as_json)


@user.command("list")
@json_option
@api_command
def user_list(client: Client, as_json: bool) -> None:
    """List the users."""
    columns: dict[str, Field] = {
        "user": "name",
        "role": "role",
        "since": lambda row: utc_day(row["created_at"]),
        "last seen": lambda row: utc_minute(row["last_used_at"]),
        "banned": lambda row: (
            f"{utc_day(row['banned_at'])} {row['banned_reason']}" if row["banned_at"] else ""
        ),
    }
    print_rows(client.request("GET", "/admin/users"), "users", as_json, columns)


@user.command("ban")
@click.argument("name")
@click.option("--reason", default="", help="Reason that the user is shown.")
@api_command
def user_ban(client: Client, name: str, reason: str) -> None:
    """Lock NAME out, cancel their running jobs, and take their results off the boards."""
    client.request("POST", f"/admin/users/{path_segment(name)}/ban", json={"reason": reason})
    print_done(f"{name} is banned; grade admin user unban {name} takes it back")
    graded = client.request("GET", f"/admin/users/{path_segment(name)}/graded")["graded"]
    if graded:
        print_done(
            f"its workers graded {graded} results, which still count; grade admin user hold "
            f"{name} takes them off the boards until you release or rejudge them"
        )


@user.command("hold")
@click.argument("name")
@api_command
def user_hold(client: Client, name: str) -> None:
    """Take all results that NAME's workers graded off the boards, until you decide."""
    held = client.request("POST", f"/admin/users/{path_segment(name)}/hold")["held"]
    print_done(f"results held: {held}; grade admin held lists them")


@user.command("unhold")
@click.argument("name")
@api_command
def user_unhold(client: Client, name: str) -> None:
    """Release the results that `hold` took off the boards."""
    released = client.request("POST", f"/admin/users/{path_segment(name)}/unhold")["released"]
    print_done(f"results released: {released}")


@user.command("unban")
@click.argument("name")
@api_command
def user_unban(client: Client, name: str) -> None:
    """Let NAME in again; their results count again."""
    client.request("POST", f"/admin/users/{path_segment(name)}/unban")
    print_done(f"{name} is no longer banned")


@user.command("link")
@click.argument("name")
@click.option("--provider", required=True, help="Its name in the server's settings: github.")
@click.option("--subject", required=True, help="The provider's identifier of the person.")
@api_command
def user_link(client: Client, name: str, provider: str, subject: str) -> None:
    """Let NAME sign in with an account of another site.

    GitHub's identifiers are numbers: the field id at https://api.github.com/users/LOGIN.
    """
    path = f"/admin/users/{path_segment(name)}/identities"
    client.request("POST", path, json={"provider": provider, "subject": subject})
    print_done(f"{name} may sign in with {provider}")


@user.command("links")
@click.argument("name")
@json_option
@api_command
def user_links(client: Client, name: str, as_json: bool) -> None:
    """List the accounts of other sites that NAME signs in with."""
    columns: dict[str, Field] = {
        "id": "id",
        "provider": "provider",
        "subject": "subject",
        "since": lambda row: utc_day(row["created_at"]),
    }
    answer = client.request("GET", f"/admin/users/{path_segment(name)}/identities")
    print_rows(answer, "identities", as_json, columns)


@user.command("unlink")
@click.argument("name")
@click.argument("number", metavar="ID", type=int)
@api_command
def user_unlink(client: Client, name: str, number: int) -> None:
    """Let NAME no longer sign in with the account ID; its sessions end."""
    client.request("DELETE", f"/admin/users/{path_segment(name)}/identities/{number}")
    print_done(f"{name} no longer signs in with account {number}")


@admin.group()
def token() -> None:
    """Create, list and revoke tokens."""


@token.command("new")
@click.argument("name")
@click.option("--label", default="", help="What the token is for.")
@json_option
@api_command
def token_new(client: Client, name: str, label: str, as_json: bool) -> None:
    """Print another token of the user NAME; it is shown only this once."""
    path = f"/admin/users/{path_segment(name)}/tokens"
    print_token(client.request("POST", path, json={"label": label}), as_json)


@token.command("list")
@click.argument("name")
@json_option
@api_command
def token_list(client: Client, name: str, as_json: bool) -> None:
    """List the tokens of the user NAME, by number."""
    answer = client.request("GET", f"/admin/users/{path_segment(name)}/tokens")
    print_rows(answer, "tokens", as_json, TOKEN_COLUMNS)


@token.command("revoke")
@click.argument("name", required=False)
@click.option("--id", "number", type=int, help="Only the token with this number.")
@api_command
def token_revoke(client: Client, name: str | None, number: int | None) -> None:
    """Revoke all tokens of the user NAME, or one by its number, and end their sessions."""
    if (not name) == (number is None):
        raise click.UsageError("name a user, or one token with --id")
    path = f"/admin/users/{path_segment(name)}/tokens" if name else f"/admin/tokens/{number}"
    print_done(f"tokens and sessions ended: {client.request('DELETE', path)['ended']}")


@admin.group()
def board() -> None:
    """Set deadlines, freeze and hide boards, publish sources, list the versions of problems."""


board.add_command(versions)


@board.command("show")
@click.argument("problem")
@json_option
@api_command
def board_show(client: Client, problem: str, as_json: bool) -> None:
    """Show the settings of PROBLEM's board."""
    _print_board(client.request("GET", f"/admin/boards/{path_segment(problem)}"), as_json)


@board.command("set")
@click.argument("problem")
@click.option("--deadline", metavar="ISO|none", help="Such as 2030-05-01T23:59+02:00.")
@click.option("--opens", metavar="ISO|none", help="Until then only admins see the board.")
@click.option("--daily", metavar="N|none", help="Submissions of a user within 24 hours.")
@click.option("--team-size", metavar="N|none", help="The most people in a team; none: alone.")
@click.option(
    "--freeze",
    metavar="ISO|none",
    help="From then on, all but admins see the standings of that moment.",
)
@click.option("--unfreeze", is_flag=True, help="Show the final standings; as --freeze none.")
@click.option("--hide/--show", "hidden", default=None, help="Whether only admins see the board.")
@click.option(
    "--publish-sources/--private-sources",
    default=None,
    help="Whether everyone may read sources, after the deadline if there is one.",
)
@click.option("--group", metavar="NAME|none", help="Only its members and admins see the board.")
@click.option("--note", help="One line shown to competitors; '' for none.")
@json_option
@api_command
def board_set(
    client: Client,
    problem: str,
    deadline: str | None,
    opens: str | None,
    daily: str | None,
    team_size: str | None,
    freeze: str | None,
    unfreeze: bool,
    hidden: bool | None,
    publish_sources: bool | None,
    group: str | None,
    note: str | None,
    as_json: bool,
) -> None:
    """Change settings of PROBLEM's board; settings that are not given stay."""
    path = f"/admin/boards/{path_segment(problem)}"
    changes: dict[str, Any] = {}
    if unfreeze:
        if freeze is not None:
            raise click.UsageError("give --freeze or --unfreeze, not both")
        freeze = "none"
    for option, field, text in (
        ("--deadline", "deadline", deadline),
        ("--opens", "opens_at", opens),
        ("--freeze", "freeze_at", freeze),
    ):
        if text is not None:
            changes[field] = None if text == "none" else iso_moment(option, text)
    if daily is not None:
        changes["daily_limit"] = None if daily == "none" else _number("--daily", daily, 1, 20)
    if team_size is not None:
        changes["team_size"] = (
            None if team_size == "none" else _number("--team-size", team_size, 2, 4)
        )
    for name, value in (("hidden", hidden), ("publish_sources", publish_sources), ("note", note)):
        if value is not None:
            changes[name] = value or None if name == "note" else value
    if group is not None:
        changes["group"] = None if group == "none" else group
    if not changes:
        raise click.UsageError("nothing to set; see --help")
    settings = client.request("GET", path)
    del settings["problem"]
    _print_board(client.request("PUT", path, json=settings | changes), as_json)


@admin.group()
def worker() -> None:
    """List and drain workers."""


@worker.command("list")
@json_option
@api_command
def worker_list(client: Client, as_json: bool) -> None:
    """List the workers of the last day, and those that are drained."""
    columns: dict[str, Field] = {
        "worker": "name",
        "via": "via",
        "device": lambda row: row["gpu"] or "CPU",
        "slots": "slots",
        "busy": "running",
        "state": _worker_state,
        "last seen": lambda row: utc_minute(row["last_seen"]),
    }
    print_rows(client.request("GET", "/admin/workers"), "workers", as_json, columns)


@worker.command("drain")
@click.argument("name")
@api_command
def worker_drain(client: Client, name: str) -> None:
    """Give the worker NAME no further jobs; it finishes those that it has.

    It stays drained when it, or the server, is started again.
    """
    client.request("POST", f"/admin/workers/{path_segment(name)}/drain")
    print_done(f"{name} gets no further jobs; grade admin worker undrain {name} takes it back")


@worker.command("undrain")
@click.argument("name")
@api_command
def worker_undrain(client: Client, name: str) -> None:
    """Give the worker NAME jobs again."""
    client.request("POST", f"/admin/workers/{path_segment(name)}/undrain")
    print_done(f"{name} gets jobs again")


@admin.command()
@json_option
@api_command
def held(client: Client, as_json: bool) -> None:
    """List what waits for an admin: gradings and results.

    A job is held if it fails, or kills its worker, too often. A held result does not count.
    """
    columns: dict[str, Field] = {
        "id": "id",
        "user": "user",
        "problem": "problem",
        "file": "name",
        "submitted": lambda row: utc_minute(row["submitted_at"]),
        "why": "reason",
    }
    print_rows(client.request("GET", "/admin/held"), "held", as_json, columns)


@admin.command()
@click.argument("number", metavar="ID", type=int)
@api_command
def release(client: Client, number: int) -> None:
    """Queue the held submission ID again, or let its held result count."""
    client.request("POST", f"/admin/submissions/{number}/release")
    is_done = client.request("GET", f"/submissions/{number}")["state"] == "done"
    became = "is no longer held" if is_done else "is queued again"
    print_done(f"submission {number} {became}")


@admin.command()
@click.argument("number", metavar="ID", type=int)
@api_command
def delete(client: Client, number: int) -> None:
    """Cancel the submission ID, or delete it if it is done.

    A deleted submission is hidden and off the board.
    """
    became = client.request("DELETE", f"/admin/submissions/{number}")["became"]
    print_done(f"submission {number} is {became}")


@admin.command()
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Most entries to show.",
)
@click.option("--before", type=int, help="Only entries below this number.")
@json_option
@api_command
def audit(client: Client, limit: int, before: int | None, as_json: bool) -> None:
    """Show the audit log: what admins did, newest first."""
    columns: dict[str, Field] = {
        "no.": "id",
        "when": lambda row: utc_minute(row["at"]),
        "who": "actor",
        "action": "action",
        "subject": "subject",
        "detail": "detail",
    }
    params = {"limit": limit} | ({} if before is None else {"before": before})
    print_rows(client.request("GET", "/admin/audit", params=params), "acts", as_json, columns)


def _number(option: str, text: str, least: int, example: int) -> int:
    """A number of at least `least`. Raises click.UsageError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise click.UsageError(
            f"{option}: '{text}' is not a number from {least} on; write {example}, or none"
        )
    return int(text)


def _worker_state(row: Row) -> str:
    """``connected``, ``gone``, or these with what became of its drain."""
    state = "connected" if row["connected"] else "gone"
    if row["drained_at"] is None:
        return state
    return f"{state}, drained" if not row["running"] else f"{state}, finishing, then drained"


def _team_size(size: int | None) -> str:
    return "none, people compete alone" if size is None else f"of up to {size}"


def _print_board(settings: dict[str, Any], as_json: bool) -> None:
    rows = (
        ("deadline", utc_minute(settings["deadline"]) or "none"),
        ("opens", utc_minute(settings["opens_at"])),
        ("daily", settings["daily_limit"] or "any number"),
        ("teams", _team_size(settings["team_size"])),
        ("frozen from", utc_minute(settings["freeze_at"])),
        ("board", "hidden" if settings["hidden"] else "shown"),
        ("for", settings["group"] or "everyone"),
        ("sources", "published" if settings["publish_sources"] else "private"),
        ("note", settings["note"]),
    )
    print_table(settings, as_json, (settings["problem"], ""), rows)
