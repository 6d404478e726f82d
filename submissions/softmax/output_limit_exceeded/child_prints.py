"""Lets a child process print forever."""

import subprocess
import sys

PROGRAM = "while True: print('still computing ' * (1 << 12))"


def softmax(x, out):
    subprocess.run([sys.executable, "-c", PROGRAM], check=False)
