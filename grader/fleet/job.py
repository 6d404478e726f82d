"""The states of a job, and the records of submissions, jobs, leases and workers.

::

    submit ──► queued ──claim──► leased ──begin──► running ──finish──► done
                ▲  ▲               │                  │
                │  └───────────────┴─────┬────────────┘
                │    given back, failed (after a delay), or swept (its lease has expired)
                │                        │
             release ◄──── held ◄────────┘ at the third failure, or the third death

A job can be cancelled in every state except `done`. `done` and `cancelled` are final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple

from grader.judge import Progress
from grader.judge.record import Device
from grader.submission import Language, Submission


class State(StrEnum):
    """The state of a job; the module's diagram shows the transitions."""

    QUEUED = "queued"
    """Waiting for a worker."""
    LEASED = "leased"
    """Leased to a worker that has not begun grading."""
    RUNNING = "running"
    """A worker is grading it."""
    HELD = "held"
    """Failed, or lost its worker, three times: an admin must look. Not the submitter's fault."""
    DONE = "done"
    """Its result is on the board."""
    CANCELLED = "cancelled"
    """Ended without a result. A result that still arrives is dropped."""


Via = Literal["local", "ray", "http"]
"""How a worker is connected: on the server's machine, on a Ray cluster, or pulling over HTTP."""

MAX_SOURCE_BYTES = 16 << 20
"""The largest source that is stored and graded. A problem's own limit may be lower."""

LEASED_STATES = (State.LEASED, State.RUNNING)
IN_FLIGHT_STATES = (State.QUEUED, *LEASED_STATES)
UNFINISHED_STATES = (*IN_FLIGHT_STATES, State.HELD)


@dataclass(frozen=True)
class Job:
    """A submission and its job."""

    submission_id: int
    user: str
    problem: str
    problem_digest: str
    name: str
    """File name, escaped."""
    language: Language
    sha256: str
    gpu: str | None
    """The GPU type requested; None for any worker."""
    created_at: datetime
    state: State
    position: int | None
    """Position in the queue, from 1; None if it is not queued, or an item of a batch."""
    failures: int
    """Judge errors since it was submitted or released."""
    deaths: int
    """Leases that expired since it was submitted or released."""
    not_before: datetime | None
    """The end of the delay after a failure."""
    leased_by: str | None
    """The worker that holds the lease, that finished the job, or that held it when it was
    cancelled."""
    lease_until: datetime | None
    held_reason: str | None
    cancelled_by: str | None
    result_id: int | None
    """The id of its result on the board, once done."""
    progress: Progress | None
    """The progress that its worker last reported; None while it is not being graded."""
    updated_at: datetime | None
    """When any of these fields last changed."""
    rejudge_id: int | None
    """The rejudge that made this submission; None for a user's own."""
    original_id: int | None
    """The submission that the rejudge copied."""
    batch_id: int | None
    """The batch that it is an item of; None for a submission."""
    team: str | None = None
    """The team that it counts for; None if it counts for its user."""


@dataclass(frozen=True)
class BatchItem:
    """One file of a batch that is handed in."""

    key: str
    """The client's name for it, of which a batch has no two equal ones."""
    submission: Submission
    benchmarks: bool = True
    """Whether it is timed if it passes its tests."""


@dataclass(frozen=True)
class Batch:
    """Many files for one problem, and how far they are."""

    id: int
    user: str
    problem: str
    problem_digest: str
    gpu: str | None
    """The GPU type requested; None for any worker."""
    created_at: datetime
    items: int
    closed_at: datetime | None
    """When its last item ended; None while one waits or is graded."""
    cancelled_by: str | None
    removed_at: datetime | None
    """When its reports were removed, since it was old."""
    states: Mapping[State, int]
    """The number of its items in each state."""


class BatchResult(NamedTuple):
    """How an item of a batch ended."""

    place: int
    """Its number in the order in which items ended. There may be gaps."""
    key: str
    report: str | None
    """The report as JSON; None if there is none."""
    error: str | None
    """Why there is no report, in one line."""
    worker: str | None
    """The worker that graded it last."""


class QueuePlace(NamedTuple):
    """A user's job in flight, with what decides its place. A tuple for speed: many are read."""

    submission_id: int
    user: str
    problem: str
    problem_digest: str
    language: str
    gpu: str | None
    state: State
    position: int | None
    """As `Job.position`."""


@dataclass(frozen=True)
class QueueHead:
    """The jobs in flight without those of rejudges and batches: all places, and the first jobs."""

    places: Sequence[QueuePlace]
    """First those that workers hold, then the queue in order."""
    jobs: Sequence[Job]
    """The jobs of the first places."""


@dataclass(frozen=True)
class LeaseKey:
    """Proof that a worker holds the lease of a submission."""

    submission_id: int
    token: str = field(repr=False)
    """A secret shared by the worker and the ledger."""
    holder: str | None = field(default=None, kw_only=True, compare=False)
    """Beginning of the name of the worker that must hold the lease, such as ``farm/``. None accepts
    any holder of the token, for callers in the server's own process."""


@dataclass(frozen=True)
class Lease(LeaseKey):
    """A worker's right to grade a submission until a deadline, with the data to grade it."""

    until: datetime
    """The deadline at the time of the claim. Heartbeats extend it."""
    problem: str
    problem_digest: str
    name: str
    language: Language
    source: bytes = field(repr=False)
    gpu: str | None
    benchmarks: bool = True
    """Whether it is to be timed; only items of batches may not be."""


@dataclass(frozen=True)
class Worker:
    """A worker: a number of slots with the same device."""

    name: str
    via: Via
    device: Device
    gpu: str | None
    """The GPU's name; null on a CPU."""
    slots: int
    """The number of slots, including busy ones."""
    problems: Mapping[str, str] | None = field(default=None, kw_only=True)
    """The problem versions that it grades, name → digest. None if it has not reported them."""

    @property
    def is_drained(self) -> bool:
        """Whether it gets no further jobs."""
        return False


@dataclass(frozen=True)
class WorkerStatus(Worker):
    """A worker, when it last announced itself, and whether it gets further jobs."""

    last_seen: datetime
    drained_at: datetime | None = None
    """Since when it gets no further jobs; None if it gets some."""

    @property
    def is_drained(self) -> bool:
        """Whether it gets no further jobs."""
        return self.drained_at is not None


def gpu_matches(gpu: str | None, requested: str | None) -> bool:
    """Whether the GPU named `gpu` is of the requested type; None requests any or no GPU.

    Every word of the type must be a word of the name, so ``L4`` does not match ``L40S``. A rejudge
    requests a full name, while Ray names a GPU by the word after the vendor: its ``H100`` matches
    the requested ``NVIDIA H100 80GB HBM3``.
    """
    if requested is None or gpu is None:
        return requested is None
    requested_words, gpu_words = _words(requested), _words(gpu)
    if set(requested_words) <= set(gpu_words):
        return True
    return gpu_words != [] and gpu_words == requested_words[1:2]


def unschedulable_reason(job: Job | QueuePlace, workers: Iterable[Worker]) -> str | None:
    """Why none of these workers can take a job; None if one can."""
    version = (job.problem, job.problem_digest)
    kind = f"{job.gpu} worker" if job.gpu else "worker"
    requirements: tuple[tuple[Callable[[Worker], bool], str], ...] = (
        (lambda worker: worker.slots > 0, "no worker is connected"),
        (lambda worker: not worker.is_drained, "every connected worker is drained"),
        (
            lambda worker: gpu_matches(worker.gpu, job.gpu),
            f"no worker has a GPU of the type {job.gpu}",
        ),
        (
            lambda worker: worker.device == "cuda" or job.language == "python",
            "no worker has a GPU, which a .cu file needs",
        ),
        (
            lambda worker: worker.problems is None or version in worker.problems.items(),
            f"no {kind} has this version of {job.problem}",
        ),
    )
    candidates = list(workers)
    for is_met, reason in requirements:
        candidates = [worker for worker in candidates if is_met(worker)]
        if not candidates:
            return reason
    return None


class SubmissionRefused(Exception):
    """The submission cannot be accepted now. The text is one line for the submitter."""

    def __init__(self, text: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class QueueFull(SubmissionRefused):
    """The queue has reached its limit."""


class TooManyInFlight(SubmissionRefused):
    """The user has reached the limit of submissions in flight."""


class DailyLimitReached(SubmissionRefused):
    """The user has submitted as many files to the board within 24 hours as it takes of each."""


class DiskNearlyFull(SubmissionRefused):
    """The database's disk has less room than the server keeps free."""


class EntryRefused(Exception):
    """The user has another entry on the board, or too many people share this one. The text is one
    line."""


class QuotaExceeded(Exception):
    """The user's stored sources leave no room for this one. The text is one line."""


class KeyReused(Exception):
    """The idempotency key belongs to another submission or batch of the user. The text is one
    line."""

    def __init__(self, first: str) -> None:
        super().__init__(
            f"this key belongs to {first}, of another file, problem or GPU; choose a new key"
        )


class DeadlinePassed(Exception):
    """The board's deadline has passed. The text is one line for the submitter."""

    def __init__(self, problem: str, deadline: datetime) -> None:
        super().__init__(f"the deadline of {problem} was {deadline:%Y-%m-%d %H:%M} UTC")


def _words(name: str) -> list[str]:
    return name.casefold().replace("-", " ").split()
