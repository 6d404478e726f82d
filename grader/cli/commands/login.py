"""`grade login`: remember a server, and who one is there."""

from __future__ import annotations

import os
import sys

import click


@click.command()
@click.option(
    "--server", metavar="URL", help="The server [default: $GRADE_SERVER, or the one of last time]."
)
@click.option(
    "--token",
    metavar="TOKEN",
    help="The token [default: $GRADE_TOKEN, or it is asked for, which keeps it out of sight].",
)
def login(server: str | None, token: str | None) -> int:
    """Check a token with a server and store both, for `grade admin` and `submit --server URL`.

    They are stored in ~/.config/grade/credentials.json, which only you can read.
    """
    from grader.cli.output.terminal import err
    from grader.cli.remote import Client, Credentials, checked_url

    known = Credentials.load()
    chosen = server or os.environ.get("GRADE_SERVER") or known.current
    if chosen is None:
        raise click.UsageError("which server? Say --server URL")
    url = checked_url(chosen)
    if url.startswith("http://") and not _is_here(url):
        note = f"{url} is not encrypted: whoever is on the way can read your token"
        err().print(note, style="yellow", soft_wrap=True)
    token = token or os.environ.get("GRADE_TOKEN") or _asked()
    with Client(url, token.strip()) as client:
        me = client.request("GET", "/me")
    known.tokens[url] = token.strip()
    known.current = url
    path = known.save()
    click.echo(f"You are {me['name']} ({me['role']}) on {url}. Stored in {path}")
    return 0


def _asked() -> str:
    """The token from the keyboard, unseen, or from a pipe."""
    if sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True))
    if not (token := sys.stdin.readline().strip()):
        raise click.UsageError("no token: say --token, set GRADE_TOKEN, or type it")
    return token


def _is_here(url: str) -> bool:
    import httpx

    return httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")
