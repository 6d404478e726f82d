"""How long a connection may be open before a request comes, and how long its headers may be.

The server that we run on waits for headers without end, and keeps all of them: strangers could hold
its connections and its memory with a few bytes now and then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
else:  # this or another, by what is installed; they share what is used here
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as Protocol

HEADERS_S = 20.0
"""From a connection, or the first byte of a further request, to the end of the headers."""

HEADERS_BYTES = 64 << 10


class Patience(Protocol):
    """uvicorn's protocol, which closes a connection that does not come to the point."""

    _unasked_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn's own is narrower
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what comes; once that is a request, wait no more until the next one begins."""
        super().data_received(data)
        if self._is_asked():
            self._rest()
            return
        self._unasked_bytes += len(data)
        if self._unasked_bytes > HEADERS_BYTES:
            self.transport.close()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._rest()
        super().connection_lost(exc)

    def _is_asked(self) -> bool:
        """Whether a request has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._timer = self.loop.call_later(HEADERS_S, self._end)

    def _rest(self) -> None:
        self._unasked_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        if not self._is_asked():
            self.transport.close()
