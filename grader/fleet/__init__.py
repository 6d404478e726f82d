"""The fleet: the ledger of jobs, the dispatchers, and the workers that grade."""

from grader.fleet.job import (
    DeadlinePassed,
    Job,
    Lease,
    QueueFull,
    State,
    SubmissionRefused,
    TooManyInFlight,
    Worker,
    WorkerStatus,
)
from grader.fleet.ledger import Ledger

__all__ = [
    "DeadlinePassed",
    "Job",
    "Lease",
    "Ledger",
    "QueueFull",
    "State",
    "SubmissionRefused",
    "TooManyInFlight",
    "Worker",
    "WorkerStatus",
]
