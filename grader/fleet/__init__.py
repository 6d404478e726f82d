"""The fleet: the ledger of jobs, the dispatchers, and the workers that grade."""

from grader.fleet.job import (
    Batch,
    BatchItem,
    DeadlinePassed,
    DiskNearlyFull,
    Job,
    Lease,
    QueueFull,
    QuotaExceeded,
    State,
    SubmissionRefused,
    TooManyInFlight,
    Worker,
    WorkerStatus,
)
from grader.fleet.ledger import Ledger

__all__ = [
    "Batch",
    "BatchItem",
    "DeadlinePassed",
    "DiskNearlyFull",
    "Job",
    "Lease",
    "Ledger",
    "QueueFull",
    "QuotaExceeded",
    "State",
    "SubmissionRefused",
    "TooManyInFlight",
    "Worker",
    "WorkerStatus",
]
