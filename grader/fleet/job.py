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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from grader.judge import Progress
from grader.judge.record import Device
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


Via = Literal["local", "ray", "http"]
"""How a worker is reached: on the server's machine, on a cluster, or by its own pulling."""

MAX_SOURCE_BYTES = 16 << 20
"""The largest source that is stored, and graded by a slot, whatever a problem's own limit says."""

IN_HAND = (State.LEASED, State.RUNNING)
IN_FLIGHT = (State.QUEUED, *IN_HAND)
UNFINISHED = (*IN_FLIGHT, State.HELD)


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
    progress: Progress | None
    """Where its grading is, as its worker last told; None when nobody grades it."""
    updated_at: datetime | None
    """When anything here last changed."""
    rejudge_id: int | None
    """The rejudge it belongs to; None for a submission of a user's own."""
    original_id: int | None
    """The submission that a rejudge grades again with this one."""


@dataclass(frozen=True)
class Ticket:
    """What proves that a worker still has a submission."""

    submission_id: int
    token: str = field(repr=False)
    """A secret between worker and ledger."""


@dataclass(frozen=True)
class Lease(Ticket):
    """A worker's right to grade one submission until a deadline, and all that it needs to."""

    until: datetime
    """The deadline at the time of the claim; heartbeats move it."""
    problem: str
    problem_digest: str
    name: str
    language: Language
    source: bytes = field(repr=False)
    gpu: str | None


@dataclass(frozen=True)
class Worker:
    """Slots of one kind, and who offers them."""

    name: str
    via: Via
    device: Device
    gpu: str | None
    """The GPU's name; null on a CPU."""
    slots: int
    """How many there are, busy ones too."""
    problems: Mapping[str, str] | None = field(default=None, kw_only=True)
    """The versions that it grades: digests by the problem's name. None where it has not said."""


@dataclass(frozen=True)
class WorkerSeen(Worker):
    """A worker, and when it last said that it is there."""

    last_seen: datetime


def is_of_type(gpu: str | None, wanted: str | None) -> bool:
    """Whether a GPU is of the type asked for; None asks for none.

    It is when each word of the type is one of its name's, so that ``L4`` is no ``L40S``. A rejudge
    asks by a whole name, and a cluster knows its GPUs by one word of that: the one behind the
    maker's, ``H100`` of ``NVIDIA H100 80GB HBM3``.
    """
    if wanted is None or gpu is None:
        return wanted is None
    asked, has = _words(wanted), _words(gpu)
    return set(asked) <= set(has) or (has != [] and has == asked[1:2])


def obstacle(job: Job, workers: Iterable[Worker]) -> str | None:
    """Why none of these workers could take a job, in words; None when one could."""
    version = (job.problem, job.problem_digest)
    kind = f"{job.gpu} worker" if job.gpu else "worker"
    needs: tuple[tuple[Callable[[Worker], bool], str], ...] = (
        (lambda one: one.slots > 0, "no worker is there"),
        (lambda one: is_of_type(one.gpu, job.gpu), f"no worker has a GPU of the type {job.gpu}"),
        (
            lambda one: one.device == "cuda" or job.language == "python",
            "no worker has a GPU, which a .cu file needs",
        ),
        (
            lambda one: one.problems is None or version in one.problems.items(),
            f"no {kind} has this version of {job.problem}",
        ),
    )
    left = list(workers)
    for fits, otherwise in needs:
        left = [one for one in left if fits(one)]
        if not left:
            return otherwise
    return None


class Refused(Exception):
    """A submission that cannot be taken now. The text is one line for the submitter."""

    def __init__(self, text: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class QueueFull(Refused):
    """The queue has reached its bound."""


class TooMany(Refused):
    """The user has as many submissions in flight as one may have."""


class TooLate(Exception):
    """The deadline has passed. The text is one line for the submitter."""

    def __init__(self, problem: str, deadline: datetime) -> None:
        super().__init__(f"{problem} is over since {deadline:%Y-%m-%d %H:%M} UTC")


def _words(name: str) -> list[str]:
    return name.casefold().replace("-", " ").split()
