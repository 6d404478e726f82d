"""Lets a child process take all the memory."""

import os


def _grow():
    blocks = []
    while True:
        blocks.append(b"\1" * (1 << 28))


def softmax(x, out):
    child = os.fork()
    if child == 0:
        _grow()
    os.waitpid(child, 0)
    raise MemoryError("the child process ran out of memory")
