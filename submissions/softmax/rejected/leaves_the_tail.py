# grade: device=cuda rule=work_outside_call
"""Leaves the last set of each round to a stream that is never waited for: 98 % is done at "done".

The tail is delayed by 20 ms, so that it certainly runs while the judge looks. When the clock stops
the judge reads a few words of every set, at secret places, and compares them with a later copy.
"""

import torch
from grader.runner.serve import Server

side = torch.cuda.Stream()
run = Server._run


def all_but_the_tail(self, order):
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a graph would wait for the tail")
    if len(order) < 2:
        return run(self, order)
    run(self, order[:-1])
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(40_000_000)
        run(self, order[-1:])


Server._run = all_but_the_tail


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
