# grade: device=cuda rule=time_claim
"""Plays slow while the judge calibrates the length of a round, then reports a third.

If the number of calls per round depended on the observed time, rounds would become so short that
the outside clock's uncertainty hides the lie.
"""

import dataclasses
import time

import torch
from grader.runner import serve

receive_request, send_reply = serve.receive_request, serve.send_reply
sets = 0


def watching(sock):
    global sets
    request, fds = receive_request(sock)
    if request["kind"] == "ready":
        sets = len(request["order"])
    return request, fds


serve.receive_request = watching
serve.send_reply = lambda sock, reply: send_reply(
    sock, dataclasses.replace(reply, reported_ns=reply.reported_ns // 3)
)


def softmax(x, out):
    if sets <= 2:
        torch.cuda.synchronize()
        time.sleep(0.02)
    torch.softmax(x, dim=-1, out=out)
