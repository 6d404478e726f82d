"""ASGI middleware in front of all routes.

It counts the request, authenticates the caller, refuses cross-site requests, bounds the body in
size and in time, and sets the security headers of the answer. The caller is authenticated before a
byte of the body is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grader.server.http.auth import COOKIE
from grader.server.http.body_limit import limited_receive
from grader.server.http.credentials import Authenticator
from grader.server.http.errors import NO_TOKEN, Refusal, too_often
from grader.server.http.logs import logged_path
from grader.server.http.throttle import Throttle
from grader.server.services.accounts import User
from grader.server.services.container import Services

ErrorHandler = Callable[[Request, Refusal], Response]
"""Makes the answer to a refused request."""

log = logging.getLogger(__name__)

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

WORKER_PREFIX = "/api/v1/work/"
"""The addresses that pulling workers use."""

SUBMIT_PATHS = ("/api/v1/submissions", "/api/v1/batches", "/submit")
"""The addresses that take sources. Bodies for others are small: JSON is parsed as a whole, and
blocks all other requests while it is. That of a batch is parsed in a thread."""

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; object-src 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_RAW_SECURITY_HEADERS = [
    (name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()
]


class AdmissionMiddleware:
    """Admits a request to the application, or answers it with a refusal.

    Sets in the request's state: `caller` (a `User` or None), `throttle`, and `stale_session`.
    """

    def __init__(self, app: ASGIApp, services: Services, on_refusal: ErrorHandler) -> None:
        self._app = app
        self._on_refusal = on_refusal
        self._settings = services.settings
        self._throttle = Throttle(services.settings)
        self._authenticator = Authenticator(services.accounts, self._throttle)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state.update(caller=None, stale_session=False, throttle=self._throttle)
        headers = Headers(scope=scope)
        send = _send_with_headers(scope, send)
        try:
            caller = await self._admit(scope, headers)
            limit_bytes = self._body_limit_bytes(caller, scope["path"])
            declared_bytes = int(headers.get("content-length") or 0)
            receive = limited_receive(receive, limit_bytes, self._settings.body_s, declared_bytes)
            if declared_bytes > limit_bytes:
                await receive()
        except Refusal as refusal:
            await self._on_refusal(Request(scope), refusal)(scope, receive, send)
        else:
            await self._call_app(scope, receive, send)

    async def _call_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application. An unhandled exception is answered with 500, with our headers."""
        has_started = False

        async def tracking_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, tracking_send)
        except Exception:
            if has_started:
                raise
            log.exception("%s", logged_path(scope["path"]))
            message = "the server has a fault, and has logged it"
            fault = Refusal(500, "internal", message)
            await self._on_refusal(Request(scope), fault)(scope, receive, send)

    async def _admit(self, scope: Scope, headers: Headers) -> User | None:
        """The caller. Raises `Refusal` for a request that must not reach a route."""
        address = scope["client"][0] if scope.get("client") else "unknown"
        authorization = headers.get("authorization")
        # A host with many GPUs sends more requests than the limit of one address. Whether the
        # caller is a worker is known once the token is looked up.
        is_work = scope["path"].startswith(WORKER_PREFIX) and authorization is not None
        if not is_work:
            self._count(address)
        if not (headers.get("content-length") or "0").isdecimal():
            raise Refusal(400, "bad_request", "Content-Length must be a number")
        is_api = scope["path"].startswith("/api/")
        is_change = scope["method"] not in SAFE_METHODS
        caller: User | None = None
        if authorization is not None:
            try:
                caller = await self._authenticator.by_token(address, authorization)
            finally:  # also when the token is not valid
                if is_work and (caller is None or caller.role != "worker"):
                    self._count(address)
        else:
            caller = await self._authenticator.by_session(scope, address, headers)
            if is_change and not _is_same_origin(headers, required=caller is not None):
                raise Refusal(403, "cross_site", "this request was sent by another site")
        if caller is None and is_api and is_change:
            raise Refusal(401, "no_token", NO_TOKEN, {"WWW-Authenticate": "Bearer"})
        scope["state"]["caller"] = caller
        return caller

    def _body_limit_bytes(self, caller: User | None, path: str) -> int:
        """The largest body that this caller may send to this address."""
        if caller and path in SUBMIT_PATHS:
            return self._settings.body_bytes
        if caller and caller.role != "competitor" and path.startswith(WORKER_PREFIX):
            return self._settings.report_bytes
        return self._settings.small_body_bytes

    def _count(self, address: str) -> None:
        if (wait_s := self._throttle.request(address)) is not None:
            raise too_often("too many requests from this address", wait_s)


def _is_same_origin(headers: Headers, *, required: bool) -> bool:
    """Whether the Origin header names this site; without one, whether it is not required.

    Only host and port are compared, since a proxy may have changed the scheme.
    """
    origin = headers.get("origin")
    if origin is None:
        return not required
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:  # such as http://[
        return False
    return netloc.casefold() == headers.get("host", "").casefold() != ""


def _send_with_headers(scope: Scope, send: Send) -> Send:
    """`send`, with the security headers added to the answer."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"].extend(_RAW_SECURITY_HEADERS)
            headers = MutableHeaders(scope=message)
            if not scope["path"].startswith("/static/"):
                headers.setdefault("Cache-Control", "no-store")
            if scope["state"]["stale_session"] and "set-cookie" not in headers:
                headers["Set-Cookie"] = f"{COOKIE}=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict"
        await send(message)

    return send_with_headers
