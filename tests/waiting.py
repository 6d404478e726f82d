"""How tests wait: for what happens. A clock only ends what never will."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240.0
"""Far longer than anything takes, also where others have most of the machine's processors."""


def until(holds: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Return once this holds.

    Raises:
        AssertionError: It did not for `limit_s` seconds.
    """
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)
