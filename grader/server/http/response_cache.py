"""A cache of whole answers that many callers share.

Leaderboards and the queue are read far more often than they change. An answer that depends on them
only is kept, and sent to every caller without an account until they change. A signed-in caller gets
the same answer with the regions of the page that are their own. Each request is checked against a
version that is read from the database after the request arrived; requests that wait at the same
time share one such read, and wait for one of them to make the answer. So a crowd costs as much as
one reader, and no answer is older than its request.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grader.board import BoardError
from grader.server.http.etag import Shared, VersionName, fill_regions
from grader.server.services.accounts import User
from grader.server.services.container import Services
from grader.server.services.visibility import (
    deadline_passed,
    is_frozen,
    is_hidden,
    sees_more,
)

MAX_ENTRIES = 64
"""Answers that are kept. The largest are 300 KB, plain and compressed."""

MAX_AGE_S = 1.0
"""How long an answer is kept: pages show how long ago things happened."""


class ResponseCache:
    """ASGI middleware behind `AdmissionMiddleware`, which authenticates the caller.

    It keeps the answers that routes pass to `share`. `read_versions` has, for each name that they
    pass, a function whose value differs after each change of such an answer, such as
    `boards_version`. It may raise `BoardError`.
    """

    def __init__(
        self,
        app: ASGIApp,
        read_versions: Mapping[VersionName, Callable[[], object]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._clock = clock
        self._versions = {name: _VersionReader(read) for name, read in read_versions.items()}
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._first: dict[Hashable, asyncio.Event] = {}
        """Set once the first request of a page without an entry is answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a kept answer, or call the application."""
        is_page = scope["type"] == "http" and not scope["path"].startswith("/api/")
        if is_page and scope["method"] == "HEAD":  # uvicorn leaves out the body
            as_get: Scope = {**scope, "method": "GET"}
            await self(as_get, receive, send)
            scope["route"] = as_get.get("route")
            return
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        caller: User | None = scope["state"]["caller"]
        if sees_more(caller):  # such as an admin, of every page
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # Pages contain their own address, and htmx asks for a part of a page at the same address.
        origin = (scope["scheme"], headers.get("host"), headers.get("hx-request") == "true")
        key = (*origin, scope["path"], scope["query_string"])
        if key not in self._entries and key in self._first:
            await self._first[key].wait()
        entry = self._entries.get(key)
        is_for_caller = entry is not None and (caller is None or entry.shared.regions is not None)
        if entry is not None and is_for_caller and await self._renew(entry, scope, receive):
            self._put(key, entry)
            response = _response(entry.shared, Request(scope))
            if response is not None:
                scope["route"] = entry.route
                await response(scope, receive, send)
                return
        if entry is None:
            await self._answer_first(key, scope, receive, send)
        else:
            await self._app(scope, receive, send)
            self._keep(key, entry, scope)

    async def _answer_first(
        self, key: Hashable, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Call the application for a page without an entry. Requests of it that arrive before the
        answer is made wait for that, so that a crowd makes a shared answer once."""
        made = self._first.setdefault(key, asyncio.Event())

        async def keep_and_send(message: Message) -> None:
            # A slow reader delays what `send` does, so the others do not wait for that.
            if message["type"] == "http.response.start":
                self._keep(key, self._entries.get(key), scope)
                end()
            await send(message)

        def end() -> None:
            made.set()
            if self._first.get(key) is made:
                del self._first[key]

        try:
            await self._app(scope, receive, keep_and_send)
        finally:
            end()

    def _keep(self, key: Hashable, entry: _Entry | None, scope: Scope) -> None:
        """Keep the answer that the application has made of `scope`, if it is shared."""
        caller, shared = scope["state"]["caller"], scope["state"].get("shared")
        if caller is not None and not (entry is None or entry.is_gone):
            return
        if shared is None or (caller is not None and shared.regions is None):
            self._entries.pop(key, None)
            return
        # No version was read before this answer was made, so the next request makes it again.
        self._put(key, _Entry(shared, self._reader_of(shared), scope.get("route")))

    def _reader_of(self, shared: Shared) -> _VersionReader:
        """The reader of the versions of an answer; its own, if no other answer has the same."""
        version = shared.version
        return self._versions[version] if isinstance(version, str) else _VersionReader(version)

    def _put(self, key: Hashable, entry: _Entry) -> None:
        """Keep an entry, also one that was evicted while it was renewed."""
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    async def _renew(self, entry: _Entry, scope: Scope, receive: Receive) -> bool:
        """Make the entry's answer anew if it is out of date. False if it is no longer shared."""
        try:
            versions = entry.versions
            version = await versions.next()
            if self._is_current(entry, version):
                return True
            async with entry.lock:
                # Another request may have renewed it while this one waited.
                if entry.is_gone or self._is_current(entry, version):
                    return not entry.is_gone
                version, made_at = await versions.next(), self._clock()
                inner: Scope = {**scope, "state": {**scope["state"], "caller": None}}
                # Nothing is sent from here, so that a slow reader does not block the others.
                await self._app(inner, receive, _discard)
                shared = inner["state"].get("shared")
                if shared is None:
                    entry.is_gone = True
                    return False
                entry.shared, entry.version, entry.made_at = shared, version, made_at
                return True
        except BoardError:  # the application answers with the error
            return False

    def _is_current(self, entry: _Entry, version: _Version) -> bool:
        """Whether an answer is right for the requests that arrived before `version` was read."""
        if entry.version.number >= version.number:  # made or checked after they arrived
            return True
        if entry.version.value != version.value or self._clock() - entry.made_at >= MAX_AGE_S:
            return False
        entry.version = version
        return True


class _Version(NamedTuple):
    number: int
    """Counts the reads."""
    value: object
    """What was read. It differs after every change."""


_NEVER = _Version(0, None)


@dataclass
class _Entry:
    shared: Shared
    """Not sent before it is made anew: the first one may be an answer to a signed-in caller."""
    versions: _VersionReader
    route: Any
    """The route that made it, for the log."""
    version: _Version = _NEVER
    """The last version for which the answer was right."""
    made_at: float = float("-inf")
    is_gone: bool = False
    """Whether the application no longer shares an answer."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the answer is made anew."""


class _VersionReader:
    """Reads versions one after the other, each for all requests that arrived before it began."""

    def __init__(self, read_version: Callable[[], object]) -> None:
        self._read_version = read_version
        self._count = 0
        self._running: asyncio.Future[_Version] | None = None
        self._pending: asyncio.Future[_Version] | None = None

    async def next(self) -> _Version:
        """The first version whose read begins after this call. Raises `BoardError`."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._read_after(self._running))
        return await asyncio.shield(self._pending)

    async def _read_after(self, running: asyncio.Future[_Version] | None) -> _Version:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._pending = self._pending, None  # calls from now on get a later read
        self._count += 1
        return _Version(self._count, await run_sync(self._read_version))


def boards_version(services: Services) -> object:
    """A small value that differs after every change of a shared answer. Raises `BoardError`."""
    (boards, version), now = services.admin.boards_with_version(), services.now()
    over = [name for name, board in boards.items() if deadline_passed(board, now)]
    hidden = [name for name, board in boards.items() if is_hidden(board, now)]
    frozen = [name for name, board in boards.items() if is_frozen(board, now)]
    return version, boards, over, hidden, frozen, services.problems.version


def queue_version(services: Services) -> object:
    """A small value that differs after every change of a leaderboard or of the queue.

    Raises `BoardError`.
    """
    return boards_version(services), services.ledger.queue_version()


def user_version(services: Services, name: str) -> object:
    """A small value that differs after every change of a leaderboard or of a user's submissions.

    Raises `BoardError`.
    """
    return boards_version(services), services.ledger.queue_version(name)


def _response(shared: Shared, request: Request) -> Response | None:
    """A shared answer for the caller; None if it is not shared with this one."""
    if request.state.caller is None:
        return shared.response.to(request)
    regions = shared.regions(request) if shared.regions is not None else None
    if regions is None:
        return None
    content = fill_regions(shared.response.pieces, regions)
    # A page for one user is neither kept by the browser nor compressed: it holds a secret.
    return Response(content, 200, shared.response.headers, shared.response.media_type)


async def _discard(message: Message) -> None:
    pass
