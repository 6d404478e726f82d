"""`grade team` and `grade admin team`: teams of users on a server."""

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
    utc_day,
    utc_minute,
)
from grader.cli.remote import path_segment

if TYPE_CHECKING:
    from grader.cli.remote import Client


@click.group()
def team() -> None:
    """Make a team on a server, join one, and leave it.

    On boards that take teams, what you submit counts for the team that you are in at that moment.
    """


@team.command("new")
@click.argument("name")
@json_option
@api_command
def team_new(client: Client, name: str, as_json: bool) -> None:
    """Make the team NAME, with you as its first member."""
    _print_team(client.request("POST", "/teams", json={"name": name}), as_json)


@team.command("show")
@click.argument("name", required=False)
@json_option
@api_command
def team_show(client: Client, name: str | None, as_json: bool) -> None:
    """Show the team NAME, or yours, and its members."""
    name = name or client.request("GET", "/me")["team"]
    if name is None:
        raise click.UsageError("you are in no team; name one, or grade team new NAME makes one")
    _print_team(client.request("GET", f"/teams/{path_segment(name)}"), as_json)


@team.command("invite")
@json_option
@api_command
def team_invite(client: Client, as_json: bool) -> None:
    """Print a code with which one user can join your team; it is shown only this once."""
    from grader.cli.output.terminal import print_json

    made = client.request("POST", "/me/team/codes")
    if as_json:
        print_json(made)
        return
    print(made["code"], flush=True)
    print_done(
        f"one user can join with: grade team join {made['code']}; it ends "
        f"{utc_minute(made['until'])} and is shown only this once"
    )


@team.command("join")
@click.argument("code")
@json_option
@api_command
def team_join(client: Client, code: str, as_json: bool) -> None:
    """Join the team whose member gave you CODE."""
    _print_team(client.request("POST", "/me/team", json={"code": code}), as_json)


@team.command("leave")
@api_command
def team_leave(client: Client) -> None:
    """Leave your team; what was submitted for it stays with it."""
    client.request("DELETE", "/me/team")
    print_done("you are in no team")


@click.group("team")
def admin_team() -> None:
    """List and change teams; `board set --team-size` lets a board take them."""


@admin_team.command("list")
@json_option
@api_command
def admin_team_list(client: Client, as_json: bool) -> None:
    """List the teams and their members."""
    columns: dict[str, Field] = {
        "team": "name",
        "since": lambda row: utc_day(row["created_at"]),
        "members": lambda row: ", ".join(row["members"]),
    }
    print_rows(client.request("GET", "/admin/teams"), "teams", as_json, columns)


@admin_team.command("add")
@click.argument("name")
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@api_command
def admin_team_add(client: Client, name: str, users: tuple[str, ...]) -> None:
    """Put each USER into the team NAME."""
    for user in users:
        client.request("PUT", _member(name, user))
        print_done(f"{user} is in {name}")


@admin_team.command("remove")
@click.argument("name")
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@api_command
def admin_team_remove(client: Client, name: str, users: tuple[str, ...]) -> None:
    """Take each USER out of the team NAME; what they submitted for it stays with it."""
    for user in users:
        client.request("DELETE", _member(name, user))
        print_done(f"{user} is no longer in {name}")


@admin_team.command("delete")
@click.argument("name")
@api_command
def admin_team_delete(client: Client, name: str) -> None:
    """Delete the team NAME, which must have no submissions; its members stay users."""
    client.request("DELETE", f"/admin/teams/{path_segment(name)}")
    print_done(f"there is no team {name} any more")


def _member(name: str, user: str) -> str:
    return f"/admin/teams/{path_segment(name)}/members/{path_segment(user)}"


def _print_team(found: dict[str, Any], as_json: bool) -> None:
    rows = (
        ("since", utc_day(found["created_at"])),
        ("members", ", ".join(found["members"]) or "none"),
    )
    print_table(found, as_json, (found["name"], ""), rows)
