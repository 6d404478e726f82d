"""Reads address 0: killed by a segmentation fault."""

import ctypes


def softmax(x, out):
    ctypes.string_at(0)
