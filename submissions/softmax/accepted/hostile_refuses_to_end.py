"""Ignores signals, starts an endless thread, and sleeps at exit. It is killed from outside."""

import atexit
import signal
import threading
import time

import torch

atexit.register(time.sleep, 1000)
threading.Thread(target=time.sleep, args=(1000,)).start()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)


def softmax(x, out):
    out.copy_(torch.softmax(x.float(), dim=-1))
