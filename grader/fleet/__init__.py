"""The fleet: the ledger of jobs, the dispatchers, and the workers that grade."""

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from grader.fleet.ledger import Ledger
else:

    def __getattr__(name: str) -> object:
        """The ledger is imported when it is first used. It takes half a second, for the database,
        which worker processes do not need."""
        if name != "Ledger":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from grader.fleet.ledger import Ledger

        return Ledger


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
