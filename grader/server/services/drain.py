"""Shutdown state: whether the server is draining, and which remote leases it still waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from grader.fleet.job import LeaseKey


class Drain:
    """Tracks the leases that this server gave to pulling workers. Thread-safe.

    The leases are counted here and not read from the database, which also holds those of other
    servers. This server does not wait for them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.started = False
        """Whether the server takes no new work any more."""
        self._clock = clock
        self._expires: dict[str, float] = {}
        self._lock = threading.Lock()

    def hold(self, ticket: LeaseKey, lease_s: float) -> None:
        """Record that a worker holds a job for the next `lease_s` seconds."""
        with self._lock:
            self._expires[ticket.token] = self._clock() + lease_s
            self._drop_expired()

    def release(self, ticket: LeaseKey) -> None:
        """Record that a worker no longer holds a job."""
        with self._lock:
            self._expires.pop(ticket.token, None)

    @property
    def leases(self) -> int:
        """The number of jobs that workers hold now, without expired leases."""
        with self._lock:
            self._drop_expired()
            return len(self._expires)

    def _drop_expired(self) -> None:
        now = self._clock()
        self._expires = {token: at for token, at in self._expires.items() if at > now}
