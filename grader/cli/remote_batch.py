"""`grade batch --server`: hand files in as batches, and read their results as they end."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from grader.automation import Item
    from grader.cli.remote import Client

MAX_ITEMS = 1000
"""Items that are handed in at a time: as many as a server takes by default."""

MAX_BYTES = 4 << 20
"""Bytes of sources that are handed in at a time. In JSON they may take four times as many, and a
server takes 16 MiB by default."""

MOST_KEY = 200
"""Characters of a key, as a server takes them."""

POLL_S = 2.0
"""Interval at which results are asked for."""

OUTAGE_S = 600.0
"""How long a server may be unreachable or full before the command gives up."""

Answer = TypeVar("Answer")


def grade_remotely(
    client: Client, problem: str, items: Iterable[Item], gpu: str | None
) -> Generator[dict[str, Any], None, None]:
    """Grade the items on a server. Yields a line of results for each, as they end: its `key`, and a
    `report` or an `error`.

    One batch after another, each of one problem. A batch that is not read to its end, as after an
    exception or Ctrl-C, is cancelled. Raises click.ClickException if the server refuses a batch, or
    somebody cancels it.
    """
    from grader.cli.remote import RefusedByServer, problem_name
    from grader.problem import ProblemError

    limits: dict[str, int] = {}
    requests: list[tuple[str, dict[str, Any]]] = []
    for item in items:
        try:
            name = problem_name(str(item.problem or problem))
            if name not in limits:
                limits[name] = _patiently(partial(source_limit, client, name))
            requests.append((name, _request(item, limits[name])))
        except RefusedByServer as error:
            if error.status != 404 or not item.problem:
                raise
            yield {"key": item.key, "error": str(error)}
        except (ValueError, ProblemError, click.UsageError) as error:
            yield {"key": item.key, "error": str(error)}
    for index, (name, chunk) in enumerate(_chunks(requests)):
        if index:
            print(file=sys.stderr)  # ends the line of progress
        number = hand_in(client, name, chunk, gpu)
        print(f"batch {number} on {client.server}: {len(chunk)} items", file=sys.stderr)
        with cancelled_unless_read(client, number):
            yield from results(client, number)


def source_limit(client: Client, problem: str) -> int:
    """The most bytes of a source that a server's problem takes."""
    from grader.cli.remote import path_segment

    found = client.request("GET", f"/problems/{path_segment(problem)}")
    return int(found["spec"]["limits"]["source_bytes"])


def _request(item: Item, limit_bytes: int) -> dict[str, Any]:
    """An item as the API takes it. Raises ValueError for one that cannot be sent, since a server
    refuses a batch as a whole."""
    from grader.files import UnreadableFileError, read_regular_file
    from grader.submission import language_of

    if not item.key.isprintable() or not 0 < len(item.key) <= MOST_KEY:
        raise ValueError(f"a server takes keys of 1 to {MOST_KEY} printable characters")
    language = item.language
    source = item.source
    if isinstance(source, Path):
        file = source
        language = language or language_of(source)
        if language is None:
            raise ValueError(f"{file}: a submission is one .py or .cu file")
        try:
            source = read_regular_file(file, MAX_BYTES)
        except FileNotFoundError:
            raise ValueError(f"{file}: No such file or directory") from None
        except UnreadableFileError as error:
            raise ValueError(str(error)) from None
    try:
        text = source if isinstance(source, str) else source.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{item.key}: it is not UTF-8, which a server takes only") from None
    if len(text.encode()) > limit_bytes:
        raise ValueError(f"{item.key}: the problem takes files of up to {limit_bytes:,} bytes")
    return {
        "key": item.key,
        "source": text,
        "language": language or "python",
        "benchmarks": item.benchmarks,
    }


def _chunks(
    requests: Iterable[tuple[str, dict[str, Any]]],
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The requests in batches: of one problem each, and not too large."""
    chunk: list[dict[str, Any]] = []
    of, size = "", 0
    for problem, request in requests:
        length = len(request["source"].encode())
        if chunk and (problem != of or len(chunk) >= MAX_ITEMS or size + length > MAX_BYTES):
            yield of, chunk
            chunk, size = [], 0
        of, size = problem, size + length
        chunk.append(request)
    if chunk:
        yield of, chunk


@contextmanager
def cancelled_unless_read(client: Client, number: int) -> Iterator[None]:
    """Cancel a batch if an exception, or Ctrl-C, ends the block that reads it."""
    try:
        yield
    except BaseException:
        with suppress(click.ClickException):
            client.request("DELETE", f"/batches/{number}")
        raise


def hand_in(
    client: Client,
    problem: str,
    items: list[dict[str, Any]],
    gpu: str | None,
    *,
    waits_for_room: bool = True,
) -> int:
    """Hand in a batch, by default once the server has room for it. Returns its number."""
    # With a key, a request whose answer was lost can be repeated without submitting twice.
    headers = {"Idempotency-Key": secrets.token_hex(16)}
    body = {"problem": problem, "items": items} | ({"gpu": gpu} if gpu else {})
    call = partial(client.request, "POST", "/batches", json=body, headers=headers)
    return int(_patiently(call, waits_for_room=waits_for_room)["id"])


def results(
    client: Client, number: int, on_status: Callable[[dict[str, Any]], None] = lambda status: None
) -> Iterator[dict[str, Any]]:
    """The lines of a batch as its items end. `on_status` gets the batch's status at each poll."""
    after = 0
    while True:
        # Asked before the results are: what ends in between is read in the next round.
        status = _patiently(partial(client.request, "GET", f"/batches/{number}"))
        on_status(status)
        found = _patiently(partial(_read, client, number, after))
        for line in found:
            after = line.pop("place")
            yield line
        if found:
            continue
        if status["state"] == "cancelled":
            raise click.ClickException(f"batch {number} was cancelled on the server")
        if status["state"] == "done":
            return
        time.sleep(POLL_S)


def _read(client: Client, number: int, after: int) -> list[dict[str, Any]]:
    """The results with higher places than `after`. What came before a broken connection is kept."""
    from grader.cli.remote import Unreachable

    found: list[dict[str, Any]] = []
    try:
        for line in client.lines(f"/batches/{number}/results", {"after": after}):
            found.append(line)
    except Unreachable:
        if not found:
            raise
    return found


def _patiently(call: Callable[[], Answer], *, waits_for_room: bool = True) -> Answer:
    """The answer of a call, which is repeated while the server cannot answer it now, or, if it
    `waits_for_room`, has reached a limit.

    Raises `Unreachable` or the server's last error after `OUTAGE_S`.
    """
    from grader.cli.remote import RefusedByServer, Unreachable

    start = time.monotonic()
    while True:
        try:
            return call()
        except Unreachable:
            if time.monotonic() - start > OUTAGE_S:
                raise
        except RefusedByServer as error:
            is_temporary = waits_for_room and (error.status == 429 or error.status >= 500)
            if not is_temporary or time.monotonic() - start > OUTAGE_S:
                raise
        time.sleep(POLL_S)
