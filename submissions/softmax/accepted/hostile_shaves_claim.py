# grade: device=cuda
"""Reports 5 % less than each measured time, and does nothing else.

That is too little to count as forged. The judge's own clock then counts, so the score is better
than torch_softmax.py's by at most that clock's uncertainty: compare the two.
"""

import dataclasses

import torch
from grader.runner import serve

send_reply = serve.send_reply
serve.send_reply = lambda sock, reply: send_reply(
    sock, dataclasses.replace(reply, reported_ns=reply.reported_ns * 95 // 100)
)


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
