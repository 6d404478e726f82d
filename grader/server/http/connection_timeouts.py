"""A timeout and a size limit for a request's headers.

uvicorn waits for headers without a limit, and buffers all of them. A client could hold connections
and memory by sending a few bytes now and then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
else:  # httptools or h11, whichever is installed; they share all that is used here
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as Protocol

HEADERS_S = 20.0
"""From a new connection, or the first byte of a further request, to the end of the headers."""

MAX_HEADERS_BYTES = 64 << 10


class ConnectionTimeouts(Protocol):
    """uvicorn's protocol, but it closes a connection whose headers are too slow or too large."""

    _header_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn's own is narrower
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the timer once a request has arrived; start it for the next one."""
        super().data_received(data)
        if self._has_request():
            self._stop_timer()
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADERS_BYTES:
            self.transport.close()
        elif self._timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _has_request(self) -> bool:
        """Whether a request has arrived that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEADERS_S, self._on_timeout)

    def _stop_timer(self) -> None:
        self._header_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if not self._has_request():
            self.transport.close()
