"""Sends itself a signal that no process survives."""

import os
import signal
import time


def softmax(x, out):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
