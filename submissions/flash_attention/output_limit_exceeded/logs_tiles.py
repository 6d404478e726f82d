"""Writes a line of log for every tile to stderr, for a walk over tiles that has no end."""

import sys


def flash_attention(q, k, v, out, causal, scale):
    lines = "".join(f"tile {number}: scores computed, maximum updated\n" for number in range(2048))
    while True:
        sys.stderr.write(lines)
