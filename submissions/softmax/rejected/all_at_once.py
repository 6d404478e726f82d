# grade: device=cuda rule=work_outside_call or=accepted
"""Combines the small gains: starts before the gate opens, says "done" early, and reports the limit.

Like hostile_starts_before_go.py it watches the last input with the copy engine and starts then.
Like done_in_flight.py it says "done" when the rest will finish before the judge can look.
Like hostile_shaves_to_the_limit.py it subtracts all of the outside clock's uncertainty.
"""

import time

import torch
from grader.runner.serve import Server

LIMIT_US = 3.0  # as in grader/judge/timing/plan.py
LIMIT_SHARE = 0.02
SLACK_US = 30.0
EARLY_NS = 40_000
UNDER_NS = 50_000  # a report below the limit is raised to the limit
PATIENCE_S = 0.1
timed = Server._timed
watching = torch.cuda.Stream()
seen = torch.zeros(16, dtype=torch.int32).pin_memory()
sets = None
reported_ns = 0  # of the case's first round, which is honest


def last_bytes(x):
    """The current last 64 bytes of an input."""
    with torch.cuda.stream(watching):
        seen.copy_(x.view(-1).view(torch.int32)[-16:], non_blocking=True)
    watching.synchronize()
    return seen


def almost(self, body):
    global sets, reported_ns
    if self.gate is None:
        return timed(self, body)
    if sets is not self.sets:
        sets, reported_ns = self.sets, timed(self, body)
        return reported_ns
    x = sets[-1][0]
    before = last_bytes(x).clone()
    end = time.perf_counter() + PATIENCE_S
    while torch.equal(last_bytes(x), before) and time.perf_counter() < end:
        pass
    start, _ = self.events
    start.record(self.stream)
    body()
    while not start.query():
        pass
    end_ns = time.perf_counter_ns() + reported_ns - EARLY_NS
    while time.perf_counter_ns() < end_ns:
        pass
    room_ns = max(LIMIT_US * len(sets) * 1e3, LIMIT_SHARE * reported_ns) - SLACK_US * 1e3
    return max(int(reported_ns - room_ns) - UNDER_NS, 1)


Server._timed = almost


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
