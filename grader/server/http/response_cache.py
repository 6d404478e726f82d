"""What is shown to everyone alike, answered with what the last one who asked was sent.

Who leads is read far more often than it changes. An answer that changes with the boards only is
kept whole, and sent to whoever asks for it without an account, unless a board has changed since.
That is looked up in the database for every request, after it has come; but by one look for
all that wait at the same time. So a crowd costs as much as one reader, and nobody is shown what was
over when he asked.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grader.board import BoardError
from grader.server.http.etag import Answer
from grader.server.services.services import Services
from grader.server.services.visibility import is_over

MOST = 64
"""How many answers are kept; the largest are of 300 KB, plain and packed."""

AGE_S = 1.0
"""How long an answer is kept at most: pages tell how long ago things were."""


class Front:
    """ASGI middleware behind the gate, which settles who calls. Keeps what routes have called
    `share` with. `look` tells what `changing` does; it may raise `BoardError`."""

    def __init__(
        self,
        app: ASGIApp,
        look: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._clock = clock
        self._looks = _Looks(look)
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what is kept, or let the application answer."""
        is_page = scope["type"] == "http" and not scope["path"].startswith("/api/")
        if is_page and scope["method"] == "HEAD":  # the server leaves the body out
            asked: Scope = {**scope, "method": "GET"}
            await self(asked, receive, send)
            scope["route"] = asked.get("route")
            return
        if scope["type"] != "http" or scope["method"] != "GET" or scope["state"]["caller"]:
            await self._app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host")  # pages tell under which address they are
        key = (scope["scheme"], host, scope["path"], scope["query_string"])
        kept = self._kept.get(key)
        if kept is not None and await self._is_right(kept, scope, receive):
            self._keep(key, kept)
            scope["route"] = kept.route
            await kept.answer.to(Request(scope))(scope, receive, send)
            return
        await self._app(scope, receive, send)
        answer = scope["state"].get("shared")
        if answer is None:
            self._kept.pop(key, None)
            return
        # Made after no look, it has to be made again for the next one.
        self._keep(key, _Kept(answer, scope.get("route")))

    def _keep(self, key: Hashable, kept: _Kept) -> None:
        """Keep an answer, again where others have put it out meanwhile."""
        self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

    async def _is_right(self, kept: _Kept, scope: Scope, receive: Receive) -> bool:
        """Whether an answer is what the application would say now, made anew where needed."""
        try:
            look = await self._looks.next()
            if self._agrees(kept, look):
                return True
            async with kept.making:
                if kept.gone or self._agrees(kept, look):  # as another has found while we waited
                    return not kept.gone
                look, made_at = await self._looks.next(), self._clock()
                made: Scope = {**scope, "state": dict(scope["state"])}
                # Sent to nobody: who reads slowly shall not hold up the others.
                await self._app(made, receive, _nowhere)
                answer = made["state"].get("shared")
                if answer is None:
                    kept.gone = True
                    return False
                kept.answer, kept.look, kept.made_at = answer, look, made_at
                return True
        except BoardError:  # the application finds the words for it
            return False

    def _agrees(self, kept: _Kept, look: _Look) -> bool:
        """Whether an answer is right for those for whom that look was taken."""
        if kept.look.number >= look.number:  # made, or found to be right, after they came
            return True
        if kept.look.version != look.version or self._clock() - kept.made_at >= AGE_S:
            return False
        kept.look = look
        return True


class _Look(NamedTuple):
    """What the database said of all boards."""

    number: int
    """They are counted."""
    version: object
    """Another one after every change."""


_NEVER = _Look(0, None)


@dataclass
class _Kept:
    answer: Answer
    route: Any
    """Which route made it, for the log."""
    look: _Look = _NEVER
    """The last one with which it was found to be right."""
    made_at: float = float("-inf")
    gone: bool = False
    """Whether there was no such answer any more."""
    making: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Looks:
    """Looks at the database, one after the other, each for all who came before it began."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._count = 0
        self._last: asyncio.Future[_Look] | None = None
        self._waiting: asyncio.Future[_Look] | None = None

    async def next(self) -> _Look:
        """One that begins after this call. Raises `BoardError`."""
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(self._take(self._last))
        return await asyncio.shield(self._waiting)

    async def _take(self, before: asyncio.Future[_Look] | None) -> _Look:
        if before is not None:
            await asyncio.wait([before])
        self._last, self._waiting = self._waiting, None  # who comes from now on gets a later one
        self._count += 1
        return _Look(self._count, await run_sync(self._look))


def changing(services: Services) -> object:
    """All that shared answers depend on, in short. Raises `BoardError`."""
    boards, now = services.office.boards(), services.now()
    over = [name for name, board in boards.items() if is_over(board, now)]
    return services.shelf.version(), boards, over


async def _nowhere(message: Message) -> None:
    pass
