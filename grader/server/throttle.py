"""How often one may do a thing. Counts live in memory, for this process alone."""

from __future__ import annotations

import ipaddress
import math
import time

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from grader.server.settings import Settings


class Throttle:
    """Counts within the last minute. Safe to use from several threads."""

    def __init__(self, settings: Settings) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._requests = RateLimitItemPerMinute(settings.requests_per_minute, namespace="requests")
        self._failures = RateLimitItemPerMinute(settings.failures_per_minute, namespace="failures")
        self._submissions = RateLimitItemPerMinute(
            settings.submissions_per_minute, namespace="submissions"
        )

    def request(self, address: str) -> int | None:
        """Count a request; seconds to wait when it is one too many, None when it is not."""
        return self._hit(self._requests, network(address))

    def submission(self, user: str) -> int | None:
        """Count a submission of a user, like `request`."""
        return self._hit(self._submissions, user)

    def failure(self, address: str) -> None:
        """Count a token that is none."""
        self._limiter.hit(self._failures, network(address))

    def is_guessing(self, address: str) -> int | None:
        """Seconds until tokens from this address are looked at again; None when they are now."""
        return self._wait(self._failures, network(address))

    def _hit(self, item: RateLimitItemPerMinute, key: str) -> int | None:
        return None if self._limiter.hit(item, key) else self._wait(item, key) or 1

    def _wait(self, item: RateLimitItemPerMinute, key: str) -> int | None:
        if self._limiter.test(item, key):
            return None
        reset = self._limiter.get_window_stats(item, key).reset_time
        return max(1, math.ceil(reset - time.time()))


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
