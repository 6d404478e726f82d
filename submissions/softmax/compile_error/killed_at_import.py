"""Sends itself a signal while it is imported. The file becomes no entry, as if it had exited."""

import os
import signal

import torch

os.kill(os.getpid(), signal.SIGSEGV)


def softmax(x, out):
    torch.softmax(x, dim=-1, out=out)
