"""Leaves a daemon in its own session that ignores every signal and holds the output open.

The sandbox is killed as a whole, with the daemon. The calls themselves are honest.
"""

import os
import signal
import time

import torch

if os.fork() == 0:
    os.setsid()
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    if os.fork() == 0:
        while True:
            time.sleep(0.1)
    os._exit(0)


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
