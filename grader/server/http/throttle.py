"""How often one may do a thing. Counts live in memory, for this process alone."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import threading
import time
from collections import Counter
from collections.abc import Callable

from grader.server.settings import Settings

WINDOW_S = 60.0


class Throttle:
    """Counts within the last minute. Safe to use from several threads."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = _Counts(settings.requests_per_minute, clock)
        self._failures = _Counts(settings.failures_per_minute, clock)
        self._submissions = _Counts(settings.submissions_per_minute, clock)
        self._wrong = _Counts(1, clock)

    def request(self, address: str) -> int | None:
        """Count a request; seconds to wait when it is one too many, None when it is not."""
        return self._requests.hit(network(address))

    def submission(self, user: str) -> int | None:
        """Count a submission of a user, like `request`."""
        return self._submissions.hit(user)

    def failure(self, address: str, token: str) -> None:
        """Count a token that is none. The same one again is no further guess: a browser whose
        session has ended, or a forgotten worker, shall not shut out its neighbours."""
        if self._wrong.hit(_wrong(address, token)) is None:
            self._failures.hit(network(address))

    def is_wrong(self, address: str, token: str) -> bool:
        """Whether this token was none just now, and so need not be looked up."""
        return self._wrong.wait(_wrong(address, token)) is not None

    def is_guessing(self, address: str) -> int | None:
        """Seconds until tokens from this address are looked at again; None when they are now."""
        return self._failures.wait(network(address))


class _Counts:
    """How often each key came in the last `WINDOW_S`, about: all of the window that runs, and of
    the one before as large a part as is not over yet. What is older is forgotten."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._now: Counter[str] = Counter()
        self._before: Counter[str] = Counter()

    def hit(self, key: str) -> int | None:
        """Count one, unless it is one too many: then the seconds to wait."""
        with self._lock:
            wait_s = self._wait(key)
            if wait_s is None:
                self._now[key] += 1
            return wait_s

    def wait(self, key: str) -> int | None:
        """The seconds to wait; None when one more would be counted now."""
        with self._lock:
            return self._wait(key)

    def _wait(self, key: str) -> int | None:
        over_s = self._turn()
        now, before = self._now.get(key, 0), self._before.get(key, 0)
        if now + before * (1 - over_s / WINDOW_S) < self._limit:
            return None
        # Until so much of the window before is over that there is room; where the one that runs is
        # full, it must first be the window before.
        wait_s = -over_s
        if now >= self._limit:
            now, before, wait_s = 0, now, wait_s + WINDOW_S
        wait_s += WINDOW_S * (1 - (self._limit - now) / before)
        return max(1, math.ceil(wait_s))

    def _turn(self) -> float:
        """Begin a new window when it is time; the seconds since the one that runs began."""
        over_s = self._clock() - self._began
        if over_s >= WINDOW_S:
            self._before = self._now if over_s < 2 * WINDOW_S else Counter()
            self._now = Counter()
            self._began += over_s // WINDOW_S * WINDOW_S
            over_s %= WINDOW_S
        return over_s


def network(address: str) -> str:
    """What is counted as one: an IPv4 address, or the /64 that an IPv6 customer has to himself."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address


def _wrong(address: str, token: str) -> str:
    digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{network(address)} {digest}"
