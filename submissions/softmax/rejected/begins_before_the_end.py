# grade: device=cuda rule=time_claim
"""Begins each call of a round while the one before it ends.

Its upper and its lower rows are kernels of their own, and each waits only for the same rows of the
call before. That hides launches and the last blocks of kernels, as hostile_launches_early.cu would.
Only neighbours ever meet, most often for less time than lies between two looks at the outputs.
But a graph with branches, where it waits for its inputs, holds them up by 2 ms, which is its time.
"""

import torch
from grader.runner import serve
from grader.runner.serve import Server

other = torch.cuda.Stream()
receive_request, timed = serve.receive_request, Server._timed
order, replaced, graph = [], None, None


def in_step(pairs):
    """Upper rows on one stream, lower ones on another; neither is more than a call ahead."""
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
    """A graph of a round in two halves, instead of the one that was captured call by call."""
    sets = [server.sets[i] for i in order]
    in_step(sets)  # what is loaded only when it is needed must not be in the graph
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
    if replaced is not self.graph:  # captured anew, and an honest round
        reported_ns = timed(self, body)
        replaced, graph = self.graph, captured(self)
        return reported_ns
    return timed(self, graph.replay)


serve.receive_request, Server._timed = watching, instead


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
