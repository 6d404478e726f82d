"""Stops itself with a signal: alive, silent and idle. The judge waits only until the time limit."""

import os
import signal


def softmax(x, out):
    os.kill(os.getpid(), signal.SIGSTOP)
