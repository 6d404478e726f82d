"""The end of a server: whether it has begun, and what workers elsewhere still grade for us."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from grader.fleet.job import Ticket


class Ending:
    """Knows which leases the workers that pull have from this server. Safe to use from several
    threads.

    The server notes what it told them itself: in the database are those of other servers, too,
    which this one need not wait for.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.begun = False
        """Whether no new work is taken any more."""
        self._clock = clock
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def leased(self, ticket: Ticket, lease_s: float) -> None:
        """A worker has a job for so long from now."""
        with self._lock:
            self._until[ticket.token] = self._clock() + lease_s
            self._forget_expired()

    def over(self, ticket: Ticket) -> None:
        """A worker has a job no longer."""
        with self._lock:
            self._until.pop(ticket.token, None)

    @property
    def leases(self) -> int:
        """How many jobs workers have now. One that was silent for too long has none."""
        with self._lock:
            self._forget_expired()
            return len(self._until)

    def _forget_expired(self) -> None:
        now = self._clock()
        self._until = {token: until for token, until in self._until.items() if until > now}
