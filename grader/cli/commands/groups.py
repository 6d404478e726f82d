"""`grade admin group` and `grade admin invite`: groups of users, and codes to join them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grader.cli.options import iso_moment, json_option
from grader.cli.output.admin_output import (
    Field,
    api_command,
    print_done,
    print_rows,
    utc_day,
    utc_minute,
)
from grader.cli.remote import path_segment

if TYPE_CHECKING:
    from grader.cli.remote import Client


@click.group()
def group() -> None:
    """Make groups of users; `board set --group` makes a board for one."""


@group.command("new")
@click.argument("name")
@api_command
def group_new(client: Client, name: str) -> None:
    """Make the group NAME."""
    client.request("POST", "/admin/groups", json={"name": name})
    print_done(f"{name} has no members yet; grade admin group add {name} USER adds one")


@group.command("list")
@json_option
@api_command
def group_list(client: Client, as_json: bool) -> None:
    """List the groups and their members."""
    columns: dict[str, Field] = {
        "group": "name",
        "since": lambda row: utc_day(row["created_at"]),
        "members": lambda row: ", ".join(row["members"]),
    }
    print_rows(client.request("GET", "/admin/groups"), "groups", as_json, columns)


@group.command("add")
@click.argument("name")
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@api_command
def group_add(client: Client, name: str, users: tuple[str, ...]) -> None:
    """Put each USER into the group NAME."""
    for user in users:
        client.request("PUT", _member(name, user))
        print_done(f"{user} is in {name}")


@group.command("remove")
@click.argument("name")
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@api_command
def group_remove(client: Client, name: str, users: tuple[str, ...]) -> None:
    """Take each USER out of the group NAME."""
    for user in users:
        client.request("DELETE", _member(name, user))
        print_done(f"{user} is no longer in {name}")


@group.command("delete")
@click.argument("name")
@api_command
def group_delete(client: Client, name: str) -> None:
    """Delete the group NAME and its invitations; its members stay users."""
    client.request("DELETE", f"/admin/groups/{path_segment(name)}")
    print_done(f"there is no group {name} any more")


def _member(name: str, user: str) -> str:
    return f"/admin/groups/{path_segment(name)}/members/{path_segment(user)}"


@click.group()
def invite() -> None:
    """Make codes with which people make an account or join a group."""


@invite.command("new")
@click.option("--group", "group_name", metavar="NAME", help="The group that they join.")
@click.option(
    "--uses",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="How many people may use it.",
)
@click.option("--until", metavar="ISO", help="When it ends, such as 2030-05-01T23:59+02:00.")
@json_option
@api_command
def invite_new(
    client: Client, group_name: str | None, uses: int, until: str | None, as_json: bool
) -> None:
    """Print the address of a new invitation; its code is shown only this once."""
    from grader.cli.output.terminal import print_json

    body: dict[str, Any] = {"group": group_name, "uses": uses}
    if until is not None:
        body["until"] = iso_moment("--until", until)
    made = client.request("POST", "/admin/invitations", json=body)
    if as_json:
        print_json(made)
        return
    print(made["url"], flush=True)
    print_done("anyone with this address can make an account; it is shown only this once")


@invite.command("list")
@json_option
@api_command
def invite_list(client: Client, as_json: bool) -> None:
    """List the invitations, newest first, without their codes."""
    columns: dict[str, Field] = {
        "id": "id",
        "group": "group",
        "used": lambda row: f"{row['used']} of {row['uses']}",
        "until": lambda row: utc_minute(row["until"]),
        "by": "by",
        "revoked": lambda row: utc_day(row["revoked_at"]),
    }
    print_rows(client.request("GET", "/admin/invitations"), "invitations", as_json, columns)


@invite.command("revoke")
@click.argument("number", metavar="ID", type=int)
@api_command
def invite_revoke(client: Client, number: int) -> None:
    """End the invitation ID; those who have used it stay users."""
    client.request("DELETE", f"/admin/invitations/{number}")
    print_done(f"invitation {number} is revoked")
