"""Answers with a message that is no reply: a wrong magic word and 60 KB behind it."""

import torch
from grader.runner import serve

serve.send_reply = lambda sock, reply: sock.send(b"GRD2" + bytes(60_000))


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
