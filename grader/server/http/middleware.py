"""The way in: every request passes here before any route sees it.

It counts the request, settles who calls, refuses what a browser was tricked into sending, and
bounds the body in size and in time; and it puts the headers on the answer. Who calls is settled
before a byte of the body is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from anyio.to_thread import run_sync
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grader.board import BoardError
from grader.server.http.auth import COOKIE, NO_TOKEN, Refusal, banned, error_body
from grader.server.http.throttle import Throttle
from grader.server.services.accounts import User
from grader.server.services.services import Services

Answer = Callable[[Request, Refusal], Response]
"""Makes the answer to a request that is refused."""

log = logging.getLogger(__name__)

SAFE = ("GET", "HEAD", "OPTIONS")

WORK = "/api/v1/work/"
"""Where workers pull."""

SOURCES = ("/api/v1/submissions", "/submit")
"""Where sources are sent. JSON is read as a whole while nobody else is served, and must be short.
"""

TOKEN_CHARS = 200
"""No token of ours is longer."""

LINGER_BYTES = 64 << 20
"""How much of a body that is too large is read and thrown away, so that whoever sends it reads our
answer and not a broken connection."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; object-src 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Gate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, services: Services, answer: Answer) -> None:
        self._app = app
        self._answer = answer
        self._services = services
        self._settings = services.settings
        self._throttle = Throttle(services.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state.update(caller=None, stale_session=False, throttle=self._throttle)
        headers = Headers(scope=scope)
        send = _with_headers(scope, send)
        try:
            caller = await self._admit(scope, headers)
            limit = self._body_bytes(caller, scope["path"])
            declared_bytes = int(headers.get("content-length") or 0)
            receive = _bounded(receive, limit, self._settings.body_s, declared_bytes)
            if declared_bytes > limit:
                await receive()
        except Refusal as refusal:
            await self._answer(Request(scope), refusal)(scope, receive, send)
        else:
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer; a bug of ours is answered too, with our headers on it."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            if begun:
                raise
            log.exception("%s", scope["path"])
            message = "this is a fault of the server, and was noted in its log"
            fault = Refusal(500, "internal", message)
            await self._answer(Request(scope), fault)(scope, receive, send)

    async def _admit(self, scope: Scope, headers: Headers) -> User | None:
        """Who calls. Raises `Refusal` for a request that no route shall see."""
        address = scope["client"][0] if scope.get("client") else "unknown"
        authorization = headers.get("authorization")
        # A host of many GPUs asks for jobs and tells of them more often than anyone else may ask;
        # whether it is one, its token tells.
        is_work = scope["path"].startswith(WORK) and authorization is not None
        if not is_work:
            self._count(address)
        if not (headers.get("content-length") or "0").isdecimal():
            raise Refusal(400, "bad_request", "Content-Length must be a number")
        is_api = scope["path"].startswith("/api/")
        changes = scope["method"] not in SAFE
        caller: User | None = None
        if authorization is not None:
            try:
                caller = await self._of_token(address, authorization)
            finally:  # whoever has no good token is counted like anyone else
                if is_work and (caller is None or caller.role != "worker"):
                    self._count(address)
        else:
            caller = await self._of_session(scope, address, headers)
            if changes and not _same_origin(headers, needed=caller is not None):
                raise Refusal(403, "cross_site", "this request was sent by another site")
        if caller is None and is_api and changes:
            raise Refusal(401, "no_token", NO_TOKEN, {"WWW-Authenticate": "Bearer"})
        scope["state"]["caller"] = caller
        return caller

    def _body_bytes(self, caller: User | None, path: str) -> int:
        """The largest body that this caller may send there."""
        if caller and path in SOURCES:
            return self._settings.body_bytes
        if caller and caller.role != "competitor" and path.startswith(WORK):
            return self._settings.report_bytes
        return self._settings.small_body_bytes

    def _count(self, address: str) -> None:
        if (wait_s := self._throttle.request(address)) is not None:
            raise too_often("too many requests from this address", wait_s)

    async def _of_token(self, address: str, authorization: str) -> User:
        scheme, _, token = authorization.partition(" ")
        self._refuse_guessers(address)
        caller = None
        if scheme.casefold() == "bearer":
            caller = await self._look_up(address, token.strip(), self._known_or_banned)
        if caller is None:
            self._throttle.failure(address, token.strip())
            raise Refusal(
                401,
                "bad_token",
                "this token is not valid, or not any more; ask an admin for another one",
                {"WWW-Authenticate": 'Bearer error="invalid_token"'},
            )
        return caller

    async def _of_session(self, scope: Scope, address: str, headers: Headers) -> User | None:
        """Who has this cookie. One whose session has ended is nobody, and loses the cookie; so does
        one who is banned, once he has been told."""
        token = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        if not token:
            return None
        self._refuse_guessers(address)
        try:
            caller = await self._look_up(address, token, self._known_or_banned)
        except Refusal as refusal:
            scope["state"]["stale_session"] = refusal.code == "banned"
            raise
        if caller is None:
            self._throttle.failure(address, token)
            scope["state"]["stale_session"] = True
        return caller

    def _refuse_guessers(self, address: str) -> None:
        if (wait_s := self._throttle.is_guessing(address)) is not None:
            raise too_often("too many tokens that are not valid from this address", wait_s)

    async def _look_up(
        self, address: str, token: str, find: Callable[[str], User | None]
    ) -> User | None:
        if not 0 < len(token) <= TOKEN_CHARS or not token.isascii():
            return None
        if self._throttle.is_wrong(address, token):
            return None
        try:
            return await run_sync(find, token)
        except BoardError as error:
            log.error("%s", error)
            raise unavailable() from None

    def _known_or_banned(self, token: str) -> User | None:
        """Whose token this is. Raises `Refusal` for one that would be good but for a ban."""
        accounts = self._services.accounts
        caller = accounts.whoami(token)
        if caller is None and (reason := accounts.banned(token)) is not None:
            raise banned(reason)
        return caller


def too_often(what: str, wait_s: int) -> Refusal:
    """The refusal of one who must slow down."""
    return Refusal(
        429, "too_often", f"{what}; try again in {wait_s} s", {"Retry-After": str(wait_s)}
    )


def unavailable() -> Refusal:
    """The refusal while the database cannot be used."""
    message = "the server's database does not answer; try again soon"
    return Refusal(503, "unavailable", message, {"Retry-After": "5"})


def refused(refusal: Refusal) -> JSONResponse:
    """The answer to a refused request."""
    body = error_body(refusal.code, refusal.detail)
    return JSONResponse(body, refusal.status_code, refusal.headers)


def _same_origin(headers: Headers, *, needed: bool) -> bool:
    """Whether a browser sent this from a page of ours. A proxy may have changed the scheme, so only
    host and port are compared."""
    origin = headers.get("origin")
    if origin is None:
        return not needed
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:  # such as http://[
        return False
    return netloc.casefold() == headers.get("host", "").casefold() != ""


def _bounded(receive: Receive, limit_bytes: int, limit_s: float, declared_bytes: int) -> Receive:
    """`receive`, which raises `Refusal` for a body that is too large or too slow."""
    seen_bytes = 0
    deadline: float | None = None
    ended = False

    async def counted() -> Message:
        nonlocal seen_bytes
        message = await receive()
        seen_bytes += len(message.get("body", b""))
        return message

    async def bounded() -> Message:
        nonlocal deadline, ended
        if ended:
            return await receive()
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                message = await counted()
                is_large = max(seen_bytes, declared_bytes) > limit_bytes
                while is_large and message.get("more_body") and seen_bytes < LINGER_BYTES:
                    message = await counted()
        except TimeoutError:
            text = f"the body took more than {limit_s:g} s"
            raise Refusal(408, "too_slow", text, {"Connection": "close"}) from None
        if is_large:
            text = f"the body is larger than {limit_bytes:,} bytes"
            raise Refusal(413, "too_large", text, {"Connection": "close"})
        ended = not message.get("more_body")
        return message

    return bounded


def _with_headers(scope: Scope, send: Send) -> Send:
    """`send`, with our headers on the answer."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if not scope["path"].startswith("/static/"):
                headers.setdefault("Cache-Control", "no-store")
            if scope["state"]["stale_session"] and "set-cookie" not in headers:
                headers["Set-Cookie"] = f"{COOKIE}=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict"
        await send(message)

    return sending
