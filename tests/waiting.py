"""How tests wait: for a condition, with a timeout only against hanging forever."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240.0
"""Timeout, far longer than any test takes, even on a busy machine."""


def until(holds: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Return once `holds()` is true. Raises AssertionError after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    pause_s = 0.005
    while not holds():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.1)  # what is awaited needs the CPU itself
