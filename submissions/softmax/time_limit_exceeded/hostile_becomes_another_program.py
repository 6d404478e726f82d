"""Replaces itself with a program that never replies, with the wire still open."""

import os

os.set_inheritable(3, True)


def softmax(x, out):
    os.execv("/bin/sh", ["sh", "-c", "sleep 1000"])
