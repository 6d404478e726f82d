"""The client of a server: where it is, who we are there, and what it answers."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 30.0
"""For each step of a request. Streams say something every 15 seconds."""


class Unreachable(click.ClickException):
    """The server did not answer. It may later."""


class RefusedByServer(click.ClickException):
    """The server answered with an error. Its text says what to do."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Speaks to one server. A context manager.

    Methods raise `Unreachable` and `RefusedByServer`, both of which end a command with status 2.
    """

    def __init__(self, server: str, token: str | None) -> None:
        import httpx

        self.server = checked_url(server)
        if token and not (token.isascii() and token.isprintable()):  # httpx would show it
            raise click.UsageError("the token holds characters that no token has")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # A redirect is not followed: it would carry the token to who knows whom.
        self._http = httpx.Client(base_url=self.server, headers=headers, timeout=TIMEOUT_S)

    @classmethod
    def find(cls, server: str | None) -> Client:
        """The server of this address, of GRADE_SERVER, or that one has logged in to; with the token
        of GRADE_TOKEN, or the one stored for it. Raises click.UsageError."""
        known = Credentials.load()
        chosen = server or os.environ.get("GRADE_SERVER") or known.current
        if chosen is None:
            raise click.UsageError(
                "which server? Say --server URL, set GRADE_SERVER, or `grade login --server URL`"
            )
        chosen = checked_url(chosen)
        token = os.environ.get("GRADE_TOKEN") or known.tokens.get(chosen)
        if token is None:
            raise click.UsageError(
                f"no token for {chosen}; `grade login --server {chosen}`, or set GRADE_TOKEN"
            )
        return cls(chosen, token.strip())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        files: Mapping[str, Any] | None = None,
    ) -> Any:
        """What the API answers at a path below `/api/v1`, parsed; None for an empty answer."""
        with _explained(self.server):
            reply = self._http.request(
                method, f"/api/v1{path}", json=json, params=params, data=data, files=files
            )
        _check(reply)
        return _parsed(reply) if reply.content else None

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """Name and data of each event of a stream, until the server ends it."""
        with _explained(self.server), self._http.stream("GET", f"/api/v1{path}") as reply:
            if reply.is_error:
                reply.read()
            _check(reply)
            name = ""
            for line in reply.iter_lines():
                if line.startswith("event:"):
                    name = line.removeprefix("event:").strip()
                elif line.startswith("data:"):
                    try:
                        yield name, json.loads(line.removeprefix("data:"))
                    except ValueError:
                        raise Unreachable(f"{self.server} breaks off in the middle") from None


class Credentials:
    """What `grade login` has stored: servers, the token for each, and which is the current one."""

    def __init__(self, current: str | None, tokens: dict[str, str]) -> None:
        self.current = current
        self.tokens = tokens

    @staticmethod
    def path() -> Path:
        """Where they are. Raises click.UsageError for a user without a home."""
        try:
            config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        except RuntimeError:
            raise click.UsageError(
                "this user has no home directory; set GRADE_SERVER and GRADE_TOKEN"
            ) from None
        return Path(config) / "grade" / "credentials.json"

    @classmethod
    def load(cls) -> Credentials:
        """What is stored; nothing where nothing is. Raises click.UsageError for a broken file, or
        one that others may read."""
        path = cls.path()
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise click.UsageError(f"{path} holds tokens, and others may read it: chmod 600 it")
            found = json.loads(path.read_text("utf-8"))
            return cls(found["current"], {str(k): str(v) for k, v in found["tokens"].items()})
        except FileNotFoundError:
            return cls(None, {})
        except OSError as error:
            raise click.UsageError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise click.UsageError(f"{path} is broken; remove it and `grade login` again") from None

    def save(self) -> Path:
        """Store them, for the user alone to read: all of it or nothing. Raises click.UsageError."""
        path = self.path()
        content = json.dumps({"current": self.current, "tokens": self.tokens}, indent=2)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made with mode 0600.
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(content + "\n")
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise click.UsageError(f"{path} cannot be written: {error.strerror}") from None
        return path


def checked_url(text: str) -> str:
    """A server's address without a slash behind it. Raises click.UsageError for what is none."""
    import httpx

    try:
        url = httpx.URL(text.strip())
        url.host.encode("idna")  # as the system will, when it looks the name up
    except (httpx.InvalidURL, UnicodeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
        raise click.UsageError(f"'{text}' is no server; write https://host or http://host:port")
    return str(url).rstrip("/")


@contextmanager
def _explained(server: str) -> Iterator[None]:
    import httpx

    try:
        yield
    except (httpx.TransportError, httpx.DecodingError) as error:
        why = str(error) or type(error).__name__
        raise Unreachable(f"{server} does not answer: {why}") from None


def _check(reply: httpx.Response) -> None:
    """Raise what the server said, if that is an error."""
    if reply.is_redirect:
        where = reply.headers.get("location", "elsewhere")
        text = f"the server has moved to {where}; use that address"
        raise RefusedByServer(text, reply.status_code)
    if not reply.is_error:
        return
    found = _parsed(reply)
    error = found.get("error") if isinstance(found, dict) else None
    if not isinstance(error, dict):
        text = f"the server answered {reply.status_code}; is this a grade server?"
        raise RefusedByServer(text, reply.status_code)
    raise RefusedByServer(str(error.get("message")), reply.status_code)


def _parsed(reply: httpx.Response) -> Any:
    try:
        return reply.json()
    except ValueError:
        status = reply.status_code
        text = f"{reply.url} answered {status} with something else; is this a grade server?"
        raise RefusedByServer(text, status) from None
