"""Writes to descriptor 2 without end, past Python's own streams."""

import os

BLOCK = b"still computing\n" * (1 << 12)


def softmax(x, out):
    while True:
        os.write(2, BLOCK)
