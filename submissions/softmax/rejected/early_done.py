# grade: rule=work_outside_call
"""Finds the request's number on the runner's stack and says "done" before it has started.

The reply is accepted as this call's one reply. But it stops no clock and proves nothing: the judge
takes the outputs at that moment, and they are unwritten.
"""

import sys
import time

import torch
from grader.runner import serve
from grader.wire import Reply, Status

answered = set()
send_reply = serve.send_reply


def softmax(x, out):
    frame = sys._getframe()
    while frame.f_code.co_name != "serve":
        frame = frame.f_back
    sequence = frame.f_locals["sequence"]
    send_reply(frame.f_locals["sock"], Reply(sequence, Status.OK, reported_ns=1, calls=1))
    answered.add(sequence)
    time.sleep(0.05)
    out.copy_(torch.softmax(x.float(), dim=-1))


def only_once(sock, reply):
    if reply.sequence not in answered:
        send_reply(sock, reply)


serve.send_reply = only_once
