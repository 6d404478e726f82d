from __future__ import annotations

from grader.fleet.job import LeaseKey
from grader.server.services.drain import Drain


def test_leases_are_counted_until_released_or_expired() -> None:
    now = [100.0]
    drain = Drain(lambda: now[0])
    renewed, released, silent = (LeaseKey(1, token) for token in "abc")
    for ticket in (renewed, released, silent):
        drain.hold(ticket, 30)
    assert drain.leases == 3
    drain.release(released)
    drain.release(released)
    assert drain.leases == 2
    now[0] += 20
    drain.hold(renewed, 30)
    now[0] += 20
    assert drain.leases == 1, "a lease that is not renewed expires"
    now[0] += 20
    assert drain.leases == 0
