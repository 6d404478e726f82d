from __future__ import annotations

from grader.fleet.job import Ticket
from grader.server.http.drain import Ending


def test_what_workers_have() -> None:
    now = [100.0]
    ending = Ending(lambda: now[0])
    kept, done, lost = (Ticket(1, token) for token in "abc")
    for ticket in (kept, done, lost):
        ending.leased(ticket, 30)
    assert ending.leases == 3
    ending.over(done)
    ending.over(done)
    assert ending.leases == 2
    now[0] += 20
    ending.leased(kept, 30)
    now[0] += 20
    assert ending.leases == 1, "a worker that says nothing for so long is dead"
    now[0] += 20
    assert ending.leases == 0
