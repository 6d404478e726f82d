"""The life of a job: its states, and the records that speak of it.

::

    submit ──► queued ──claim──► leased ──begin──► running ──finish──► done
                ▲  ▲               │                  │
                │  └───────────────┴─────┬────────────┘
                │    given back, failed (after a pause), or swept (its lease has expired)
                │                        │
             release ◄──── held ◄────────┘ at the third failure, or the third death

A job may be cancelled in every state but `done`. `done` and `cancelled` are final.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from grader.submission import Language


class State(StrEnum):
    """Where a job is. What leads from one to the next stands in the drawing above."""

    QUEUED = "queued"
    """Waits for a worker."""
    LEASED = "leased"
    """A worker has it, and has not begun."""
    RUNNING = "running"
    """A worker grades it."""
    HELD = "held"
    """Failed, or killed its workers, so often that a person must look. Never the submitter's
    fault."""
    DONE = "done"
    """Its result is on the board."""
    CANCELLED = "cancelled"
    """Nobody waits for it any more; a result that still comes is dropped."""


IN_HAND = (State.LEASED, State.RUNNING)
IN_FLIGHT = (State.QUEUED, *IN_HAND)


@dataclass(frozen=True)
class Job:
    """A submission and its job, as a reader sees them."""

    submission_id: int
    user: str
    problem: str
    problem_digest: str
    name: str
    """File name, escaped."""
    language: Language
    sha256: str
    gpu: str | None
    """The type of GPU that was asked for."""
    created_at: datetime
    state: State
    position: int | None
    """Place in the queue, 1 is next; None when it does not wait there."""
    failures: int
    """Judge errors since it was submitted or released."""
    deaths: int
    """Leases that expired since it was submitted or released."""
    not_before: datetime | None
    """The end of the pause after a failure."""
    leased_by: str | None
    """The worker that has it, or that finished it."""
    lease_until: datetime | None
    held_reason: str | None
    cancelled_by: str | None
    result_id: int | None
    """Its number on the board, once done."""


@dataclass(frozen=True)
class Lease:
    """A worker's right to grade one submission until a deadline, and all that it needs to."""

    submission_id: int
    token: str = field(repr=False)
    """Proves that the lease is still the worker's. A secret between worker and ledger."""
    until: datetime
    """The deadline at the time of the claim; heartbeats move it."""
    problem: str
    problem_digest: str
    name: str
    language: Language
    source: bytes = field(repr=False)
    gpu: str | None


class Refused(Exception):
    """A submission that cannot be taken now. The text is one line for the submitter."""

    def __init__(self, text: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class QueueFull(Refused):
    """The queue has reached its bound."""


class TooMany(Refused):
    """The user has as many submissions in flight as one may have."""
