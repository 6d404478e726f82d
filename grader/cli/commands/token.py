"""`grade token`: one's own tokens on a server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from grader.cli.options import json_option
from grader.cli.output.admin_output import (
    TOKEN_COLUMNS,
    api_command,
    print_done,
    print_rows,
    print_token,
)

if TYPE_CHECKING:
    from grader.cli.remote import Client


@click.group()
def token() -> None:
    """List, make, replace and revoke your tokens on a server.

    Each command logs in with GRADE_TOKEN, or the token that `grade login` stored.
    """


@token.command("list")
@json_option
@api_command
def token_list(client: Client, as_json: bool) -> None:
    """List your tokens, by number."""
    print_rows(client.request("GET", "/me/tokens"), "tokens", as_json, TOKEN_COLUMNS)


@token.command("new")
@click.option("--label", default="", help="What the token is for.")
@json_option
@api_command
def token_new(client: Client, label: str, as_json: bool) -> None:
    """Print another token of yours; it is shown only this once."""
    print_token(client.request("POST", "/me/tokens", json={"label": label}), as_json)


@token.command("rotate")
@click.argument("number", metavar="ID", type=int)
@json_option
@api_command
def token_rotate(client: Client, number: int, as_json: bool) -> None:
    """Replace your token ID by a new one, and print it.

    The sessions that the old one opened end. If it is the token that `grade login` stored, the new
    one is stored in its place.
    """
    new = client.request("POST", f"/me/tokens/{number}/rotate")
    _store_if_replaced(client, new["token"])
    print_token(new, as_json)


@token.command("revoke")
@click.argument("number", metavar="ID", type=int)
@api_command
def token_revoke(client: Client, number: int) -> None:
    """Revoke your token ID, and end the sessions that it opened."""
    ended = client.request("DELETE", f"/me/tokens/{number}")["ended"]
    print_done(f"tokens and sessions ended: {ended}")


def _store_if_replaced(client: Client, token: str) -> None:
    """Store a token if the one that the command itself used is no longer valid."""
    from grader.cli.remote import Credentials, RefusedByServer

    try:
        client.request("GET", "/me")
    except RefusedByServer as error:
        if error.status != 401:
            raise
        if os.environ.get("GRADE_TOKEN"):
            print_done("GRADE_TOKEN holds the old token; set it to the new one")
            return
        stored = Credentials.load()
        stored.tokens[client.server] = token
        print_done(f"stored in {stored.save()}")
