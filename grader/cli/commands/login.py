"""`grade login`: store a server and a token."""

from __future__ import annotations

import os
import sys

import click


@click.command()
@click.option(
    "--server",
    metavar="URL",
    help="The server [default: $GRADE_SERVER, or the server of the last login].",
)
@click.option(
    "--token",
    metavar="TOKEN",
    help="The token [default: $GRADE_TOKEN, or a prompt that does not show it].",
)
def login(server: str | None, token: str | None) -> int:
    """Check a token with a server and store both, for `grade admin` and `submit --server URL`.

    Both are stored in ~/.config/grade/credentials.json, which only you can read.
    """
    from grader.cli.output.terminal import print_warning
    from grader.cli.remote import Client, Credentials

    stored = Credentials.load()
    url = stored.choose_server(server)
    if url.startswith("http://") and not _is_local(url):
        print_warning(f"{url} is not encrypted: others on the network can read your token")
    token = token or os.environ.get("GRADE_TOKEN") or _read_token()
    with Client(url, token.strip()) as client:
        me = client.request("GET", "/me")
    stored.tokens[url] = token.strip()
    stored.current = url
    path = stored.save()
    click.echo(f"You are {me['name']} ({me['role']}) on {url}. Stored in {path}")
    return 0


def _read_token() -> str:
    """Read the token from a hidden prompt, or from a pipe."""
    if sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True))
    if not (token := sys.stdin.readline().strip()):
        raise click.UsageError("no token; use --token, set GRADE_TOKEN, or type it")
    return token


def _is_local(url: str) -> bool:
    import httpx

    return httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")
