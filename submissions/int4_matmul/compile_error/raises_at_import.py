"""Raises while it is imported: it looks for a file that does not exist."""

from pathlib import Path

TABLE = Path("tuned_tiles.json").read_text()


def int4_matmul(a, b_packed, scales, out):
    raise AssertionError("never reached")
