# grade: device=cuda rule=time_claim or=work_outside_call
"""Starts each call of a round while the previous one ends.

The upper and the lower rows have separate kernels, each of which waits only for the same rows of
the previous call. That hides launches and the last blocks of kernels, as hostile_launches_early.cu
tries to. Only neighbouring calls overlap, mostly for less time than lies between two looks at the
outputs. But a graph with branches that waits for its inputs delays them by 2 ms, which is added to
its time.
"""

import torch
from grader.runner import serve
from grader.runner.serve import Server

other = torch.cuda.Stream()
receive_request, timed = serve.receive_request, Server._timed
order, replaced, graph = [], None, None


def in_step(pairs):
    """Upper rows on one stream, lower rows on another; neither is more than a call ahead."""
    main = torch.cuda.current_stream()
    other.wait_stream(main)
    ended = []
    for x, out in pairs:
        if len(ended) > 1:
            upper, lower = ended[-2]
            main.wait_event(lower)
            other.wait_event(upper)
        half = len(x) // 2
        softmax(x[:half], out[:half])
        with torch.cuda.stream(other):
            softmax(x[half:], out[half:])
        ended.append((main.record_event(), other.record_event()))
    main.wait_stream(other)


def captured(server):
    """A graph of a round in two halves, in place of the graph captured call by call."""
    sets = [server.sets[i] for i in order]
    in_step(sets)  # modules that load lazily must not load during capture
    torch.cuda.synchronize()
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made, stream=server.stream):
        in_step(sets)
    return made


def watching(sock):
    global order
    request, fds = receive_request(sock)
    order = request.get("order", order)
    return request, fds


def instead(self, body):
    global replaced, graph
    if self.graph is None or body != self.graph.replay:
        return timed(self, body)
    if replaced is not self.graph:  # a new capture: an honest round
        reported_ns = timed(self, body)
        replaced, graph = self.graph, captured(self)
        return reported_ns
    return timed(self, graph.replay)


serve.receive_request, Server._timed = watching, instead


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
