"""The server's log: one JSON object per line, on stderr.

A request is logged by its path, without query, headers and body, so that no token, source or seed
gets into the log.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import IO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grader.report import escape
from grader.server.services.metrics import Metrics

LINE_CHARS = 4000

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

log = logging.getLogger("grade.http")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message contains."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": escape(record.getMessage(), LINE_CHARS),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["trace"] = escape(self.formatException(record.exc_info)[-LINE_CHARS:], LINE_CHARS)
        return json.dumps(line, default=str)


def configure(stream: IO[str] | None = None) -> None:
    """Send the records of all loggers, from INFO on, to stderr as JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for noisy in ("alembic", "httpx", "httpx2", "docker", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class RequestLog:
    """ASGI middleware that writes each request into the log and the metrics."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, then record its status and duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500
        is_stream = False

        async def recording_send(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                is_stream = any(
                    name == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message["headers"]
                )
            await send(message)

        try:
            await self._app(scope, receive, recording_send)
        finally:
            seconds = time.perf_counter() - started
            if not is_stream:
                self._metrics.request(_method(scope), _route(scope), status, seconds)
            caller = scope.get("state", {}).get("caller")
            log.info(
                "request",
                extra={
                    "method": _method(scope),
                    "path": logged_path(scope["path"]),
                    "status": status,
                    "ms": round(1000 * seconds, 1),
                    "user": caller.name if caller else None,
                    "address": scope["client"][0] if scope.get("client") else None,
                },
            )


def logged_path(path: str) -> str:
    """A path without the secret that it may contain: the code of an invitation."""
    is_secret = path.startswith("/join/")
    return "/join/…" if is_secret else escape(path, 200)


def _route(scope: Scope) -> str:
    """The pattern of the route that answered, with the API's prefix.

    The pattern that the router sets lacks that prefix.
    """
    pattern: str = getattr(scope.get("route"), "path", "none")
    is_api = scope["path"].startswith("/api/v1/") and pattern != "none"
    return f"/api/v1{pattern.removeprefix('/api/v1')}" if is_api else pattern


def _method(scope: Scope) -> str:
    """The method; "other" for an unknown one, so that the metrics have few labels."""
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"
