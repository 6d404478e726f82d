# grade: device=cuda rule=work_outside_call
"""All that shaves a little, together: starts before "go", says "done" early, claims to the limit.

Like starts_before_go.py it watches the last input come by the copy engine and starts then.
Like done_in_flight.py it says "done" when the rest will be over before the judge can look.
Like hostile_shaves_to_the_limit.py it takes off all that the outside clock doubts. The clock alone
would lose some 0.2 ms a round to it; but the judge looks at the outputs before it says "go".
"""

import time

import torch
from grader.runner import serve
from grader.runner.serve import Server

PINGS = 20  # these as in grader/judge/clock.py
LIMIT_US = 3.0
LIMIT_SHARE = 0.02
HEAD_US = 40.0
EARLY_NS = 40_000
UNDER_NS = 50_000  # a claim below what is allowed becomes what is allowed
PATIENCE_S = 0.1
receive_request, stay_awake, timed = serve.receive_request, serve.stay_awake, Server._timed
watching = torch.cuda.Stream()
seen = torch.zeros(16, dtype=torch.int32).pin_memory()
before = torch.zeros(16, dtype=torch.int32)
server = None  # set once a case has a graph
pings = 0
replays = False
started_ns = 0
wall_ns = 0  # of a whole round, launch and wait included


def last_bytes():
    """The last 64 bytes of the last set's input, as they are now."""
    x = server.sets[-1][0]
    with torch.cuda.stream(watching):
        seen.copy_(x.view(-1).view(torch.int32)[-16:], non_blocking=True)
    watching.synchronize()
    return seen


def listening(sock):
    global server, pings, replays
    request, fds = receive_request(sock)
    kind = request["kind"]
    if kind == "lend":
        server = None
    if kind == "ready":
        replays = request["graph"]
        if server is not None:
            before.copy_(last_bytes())
    pings = pings + 1 if kind == "ping" else 0
    return request, fds


def watchful(sock):
    """Called before each message: after the last ping, the next one is "go"."""
    global started_ns
    if server is not None and replays and pings == PINGS and not started_ns:
        end = time.perf_counter() + PATIENCE_S
        while time.perf_counter() < end:
            if not torch.equal(last_bytes(), before):
                server.graph.replay()
                started_ns = time.perf_counter_ns()
                break
    stay_awake(sock)


def almost(self, body):
    global server, started_ns, wall_ns
    if not started_ns:
        claim_ns = timed(self, body)
        if replays and self.graph is not None and server is None:
            server, wall_ns = self, claim_ns
        return claim_ns
    end_ns = started_ns + wall_ns - EARLY_NS
    start_ns = time.perf_counter_ns()
    while time.perf_counter_ns() < end_ns:
        pass
    started_ns = 0
    spent_ns = time.perf_counter_ns() - start_ns
    room_ns = max(LIMIT_US * len(self.sets) * 1e3, LIMIT_SHARE * spent_ns) - HEAD_US * 1e3
    return max(int(spent_ns - room_ns) - UNDER_NS, 1)


serve.receive_request, serve.stay_awake, Server._timed = listening, watchful, almost


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
