"""What a runner prints: counted in full, kept at both ends, for a person to read."""

from __future__ import annotations

import threading

END_BYTES = 6 * 1024
"""Bytes kept of the beginning, and of the end, where a traceback is. Both together fit into a
report's log, which would cut off anything longer at its end."""


class CapturedOutput:
    """Collects output that one thread adds and others read.

    limit_bytes: beyond this many bytes `exceeded` is true; counting goes on.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._total_bytes = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._lock = threading.Lock()

    @property
    def exceeded(self) -> bool:
        """Whether more than the limit has been printed."""
        return self._total_bytes > self._limit_bytes

    def add(self, chunk: bytes) -> bool:
        """Append a chunk. True for the one chunk that passes the limit."""
        with self._lock:
            before = self.exceeded
            self._total_bytes += len(chunk)
            room = END_BYTES - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:] if room else chunk
            if len(self._tail) > 2 * END_BYTES:
                del self._tail[:-END_BYTES]
            return self.exceeded and not before

    def kept(self) -> bytes:
        """All of it, or both ends with a note of how many bytes are left out between them."""
        with self._lock:
            head, tail = bytes(self._head), bytes(self._tail[-END_BYTES:])
            left_out = self._total_bytes - len(head) - len(tail)
        gap = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        return head + gap + tail

    def last_line(self) -> str:
        """The last line that is not blank, or an empty string."""
        lines = self.kept().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
