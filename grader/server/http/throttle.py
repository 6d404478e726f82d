"""Rate limits per address and per user, counted in memory by this process."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import lru_cache

from grader.server.settings import Settings

WINDOW_S = 60.0

MAX_VALID_TOKENS = 10_000
"""How many tokens are remembered as valid, by their digests."""


class Throttle:
    """The rate limits of a server. Thread-safe."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = _SlidingWindow(settings.requests_per_minute, clock)
        self._failures = _SlidingWindow(settings.failures_per_minute, clock)
        self._submissions = _SlidingWindow(settings.submissions_per_minute, clock)
        self._wrong_tokens = _SlidingWindow(1, clock)
        self._vain_lookups = _SlidingWindow(settings.requests_per_minute, clock)
        self._valid_tokens = _RecentKeys(MAX_VALID_TOKENS)

    def request(self, address: str) -> int | None:
        """Count a request. Returns the seconds to wait if it exceeds the limit, None if not."""
        return self._requests.hit(network_of(address))

    def submission(self, user: str) -> int | None:
        """Count a submission of a user, like `request`."""
        return self._submissions.hit(user)

    def refund_submission(self, user: str) -> None:
        """Take back a count of `submission`, since it was refused."""
        self._submissions.undo(user)

    def lookup_wait_s(self, address: str, token: str) -> int | None:
        """Seconds until this token may be looked up; None if it may be now.

        An address may have as many tokens looked up in vain as it may send requests, so that
        guesses at an address whose requests are not counted stay cheap. A token that was valid
        lately may always be looked up.
        """
        if _digest(token) in self._valid_tokens:
            return None
        return self._vain_lookups.wait_s(network_of(address))

    def success(self, token: str) -> None:
        """Note that a token is valid."""
        self._valid_tokens.add(_digest(token))

    def failure(self, address: str, token: str) -> int | None:
        """Count a wrong token. Returns the seconds to wait if the address sent too many, None if
        not.

        The same token counts once a minute: a browser with an ended session, or a forgotten worker,
        must not use up the limit of its address.
        """
        self._valid_tokens.discard(_digest(token))
        network = network_of(address)
        if self._wrong_tokens.hit(_token_key(address, token)) is not None:
            return self._failures.wait_s(network)
        self._vain_lookups.hit(network)
        return self._failures.hit(network)

    def is_known_wrong(self, address: str, token: str) -> bool:
        """Whether this token was wrong within the last minute, so that no look-up is needed."""
        return self._wrong_tokens.wait_s(_token_key(address, token)) is not None


class _SlidingWindow:
    """An approximate count of each key's hits within the last `WINDOW_S`.

    The count is that of the current window, plus that of the previous window times the share of it
    that lies within the last `WINDOW_S`. Older windows are dropped.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._current: Counter[str] = Counter()
        self._previous: Counter[str] = Counter()

    def hit(self, key: str) -> int | None:
        """Count a hit and return None; if that exceeds the limit, return the seconds to wait."""
        with self._lock:
            wait_s = self._wait_s(key)
            if wait_s is None:
                self._current[key] += 1
            return wait_s

    def undo(self, key: str) -> None:
        """Take back a hit, unless its window has ended."""
        with self._lock:
            self._advance()
            self._current[key] = max(0, self._current[key] - 1)

    def wait_s(self, key: str) -> int | None:
        """The seconds until the next hit is within the limit; None if it is now."""
        with self._lock:
            return self._wait_s(key)

    def _wait_s(self, key: str) -> int | None:
        elapsed_s = self._advance()
        current, previous = self._current.get(key, 0), self._previous.get(key, 0)
        if current + previous * (1 - elapsed_s / WINDOW_S) < self._limit:
            return None
        # Wait until enough of the previous window has passed. If the current window alone is at the
        # limit, it must become the previous one first.
        wait_s = -elapsed_s
        if current >= self._limit:
            current, previous, wait_s = 0, current, wait_s + WINDOW_S
        wait_s += WINDOW_S * (1 - (self._limit - current) / previous)
        return max(1, math.ceil(wait_s))

    def _advance(self) -> float:
        """Start a new window if the current one has ended. Returns its age in seconds."""
        elapsed_s = self._clock() - self._began
        if elapsed_s >= WINDOW_S:
            self._previous = self._current if elapsed_s < 2 * WINDOW_S else Counter()
            self._current = Counter()
            self._began += elapsed_s // WINDOW_S * WINDOW_S
            elapsed_s %= WINDOW_S
        return elapsed_s


class _RecentKeys:
    """The keys that were added last, `limit` of them at most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._keys: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Add a key, and forget the oldest if there are too many."""
        with self._lock:
            self._keys[key] = None
            self._keys.move_to_end(key)
            if len(self._keys) > self._limit:
                self._keys.popitem(last=False)

    def discard(self, key: str) -> None:
        """Forget a key."""
        with self._lock:
            self._keys.pop(key, None)


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The key under which an address is counted: itself for IPv4, its /64 for IPv6.

    A customer with IPv6 usually has a whole /64.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address


def _token_key(address: str, token: str) -> str:
    return f"{network_of(address)} {_digest(token)}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
