"""Sends a message that is not a reply: a wrong magic number and 60 KB after it."""

import torch
from grader.runner import serve

serve.send_reply = lambda sock, reply: sock.send(b"GRD2" + bytes(60_000))


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
