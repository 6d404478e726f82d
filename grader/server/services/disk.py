"""Whether the disk of the database is full, or nearly so."""

from __future__ import annotations

from grader.fleet import Ledger

RECENT_S = 60.0
"""How long a write that found the disk full is reported."""


def disk_problem(ledger: Ledger, min_free_bytes: int) -> str | None:
    """What is wrong with the disk, as one line for the operator; None if it has room.

    PostgreSQL does not say what its disk has free: there, only failed writes tell.
    """
    if (seconds := ledger.seconds_since_disk_full()) < RECENT_S:
        return f"the database's disk was full {seconds:.0f} s ago; make room on it"
    free_bytes = ledger.free_bytes()
    if free_bytes is not None and free_bytes < min_free_bytes:
        return (
            f"the database's disk is nearly full: {free_bytes:,} bytes are free, and "
            f"{min_free_bytes:,} must be; make room on it"
        )
    return None
