"""Writes to descriptor 2 forever, bypassing Python's streams."""

import os

BLOCK = b"still computing\n" * (1 << 12)


def softmax(x, out):
    while True:
        os.write(2, BLOCK)
