"""HTTP client of a grade server, and the stored credentials."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 30.0
"""Limit of each phase of a request; an event stream sends something every 15 seconds."""


class Unreachable(click.ClickException):
    """The server did not answer; it may answer later."""


class RefusedByServer(click.ClickException):
    """The server answered with an error, whose text says what to do."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Client of one server's HTTP API. A context manager.

    Methods raise `Unreachable` and `RefusedByServer`; both end a command with exit status 2.
    """

    def __init__(self, server: str, token: str | None) -> None:
        import httpx

        self.server = checked_url(server)
        if token and not (token.isascii() and token.isprintable()):
            # The error of httpx would print the token.
            raise click.UsageError("the token has invalid characters; copy it again")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Redirects are not followed: they could send the token to another host.
        self._http = httpx.Client(base_url=self.server, headers=headers, timeout=TIMEOUT_S)

    @classmethod
    def find(cls, server: str | None, *, needs_token: bool = True) -> Client:
        """The client of `server`, of GRADE_SERVER, or of the server of the last login.

        The token is GRADE_TOKEN, or the one stored for the server. Raises click.UsageError,
        without a token only if it is needed.
        """
        stored = Credentials.load()
        url = stored.choose_server(server)
        token = os.environ.get("GRADE_TOKEN") or stored.tokens.get(url)
        if token is None and needs_token:
            raise click.UsageError(
                f"no token for {url}; run grade login --server {url}, or set GRADE_TOKEN"
            )
        return cls(url, token and token.strip())

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
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The parsed JSON answer of a path below `/api/v1`; None for an empty body."""
        with _explain_errors(self.server):
            reply = self._http.request(
                method,
                f"/api/v1{path}",
                json=json,
                params=params,
                data=data,
                files=files,
                headers=headers,
            )
        _check(reply)
        return _parsed(reply) if reply.content else None

    def lines(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """The parsed lines of an answer in JSON lines, as they arrive."""
        with (
            _explain_errors(self.server),
            self._http.stream("GET", f"/api/v1{path}", params=params) as reply,
        ):
            if reply.is_error:
                reply.read()
            _check(reply)
            for line in reply.iter_lines():
                try:
                    yield json.loads(line)
                except ValueError:
                    raise Unreachable(f"{self.server} sent an incomplete line") from None

    def content(self, path: str) -> tuple[bytes, str]:
        """The bytes of a path below `/api/v1` that answers with a file, and the file's name."""
        with _explain_errors(self.server):
            reply = self._http.get(f"/api/v1{path}")
        _check(reply)
        found = re.search(r'filename="([^"]*)"', reply.headers.get("content-disposition", ""))
        return reply.content, found[1] if found else ""

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """Name and data of each server-sent event, until the server ends the stream."""
        with _explain_errors(self.server), self._http.stream("GET", f"/api/v1{path}") as reply:
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
                        raise Unreachable(f"{self.server} sent an incomplete event") from None


class Credentials:
    """What `grade login` stored: a token for each server, and the server of the last login."""

    def __init__(self, current: str | None, tokens: dict[str, str]) -> None:
        self.current = current
        self.tokens = tokens

    @staticmethod
    def path() -> Path:
        """Path of the file. Raises click.UsageError for a user with no home directory."""
        try:
            config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        except RuntimeError:
            raise click.UsageError(
                "this user has no home directory; set GRADE_SERVER and GRADE_TOKEN"
            ) from None
        return Path(config) / "grade" / "credentials.json"

    @classmethod
    def load(cls) -> Credentials:
        """Read the file; without one, there are no tokens.

        Raises click.UsageError for a broken file, or one that others may read.
        """
        path = cls.path()
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise click.UsageError(
                    f"{path} holds tokens and others may read it; run chmod 600 {path}"
                )
            found = json.loads(path.read_text("utf-8"))
            return cls(found["current"], {str(k): str(v) for k, v in found["tokens"].items()})
        except FileNotFoundError:
            return cls(None, {})
        except OSError as error:
            raise click.UsageError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise click.UsageError(
                f"{path} is broken; remove it and run grade login again"
            ) from None

    def choose_server(self, server: str | None) -> str:
        """The address of `server`, of GRADE_SERVER, or of the server of the last login.

        Raises click.UsageError if there is none, or it is not a valid URL.
        """
        chosen = server or os.environ.get("GRADE_SERVER") or self.current
        if chosen is None:
            raise click.UsageError(
                "no server given; use --server URL or set GRADE_SERVER (grade login stores one)"
            )
        return checked_url(chosen)

    def save(self) -> Path:
        """Replace the file atomically, with mode 0600. Raises click.UsageError."""
        path = self.path()
        content = json.dumps({"current": self.current, "tokens": self.tokens}, indent=2)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # 0600
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
    """A server's URL without its trailing slash. Raises click.UsageError for an invalid one."""
    import httpx

    try:
        url = httpx.URL(text.strip())
        url.host.encode("idna")  # as name resolution will encode it
    except (httpx.InvalidURL, UnicodeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query:
        raise click.UsageError(
            f"'{text}' is not a server's URL; write https://host or http://host:port"
        )
    return str(url).rstrip("/")


def path_segment(name: str) -> str:
    """A name, percent-encoded as one segment of a URL path."""
    return quote(name, safe="")


def problem_name(problem: str) -> str:
    """The name by which a server knows a problem that is given by name, by its folder, or as one of
    another set, such as ``kernelbench:PATH``. Raises click.UsageError, and `ProblemError`."""
    from grader.problem_sets import read_problem, split_prefix

    if (of_set := split_prefix(problem)) is not None:
        return read_problem(*of_set).name
    path = Path(problem)
    name = path.resolve().name if path.is_dir() else path.name
    if not name:
        raise click.UsageError(f"'{problem}' names no problem")
    return name


@contextmanager
def _explain_errors(server: str) -> Iterator[None]:
    """Raise `Unreachable` for a failed connection or a broken answer."""
    import httpx

    try:
        yield
    except (httpx.TransportError, httpx.DecodingError) as error:
        why = str(error) or type(error).__name__
        raise Unreachable(f"{server} does not answer: {why}") from None


def _check(reply: httpx.Response) -> None:
    """Raise `RefusedByServer` with the server's message for an error or a redirect."""
    if reply.is_redirect:
        where = reply.headers.get("location", "elsewhere")
        text = f"the server redirects to {where}; use that address"
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
        text = f"{reply.url} answered {status} without JSON; is this a grade server?"
        raise RefusedByServer(text, status) from None
