"""The fleet: submissions on their way to a verdict, and those who carry them there."""

from grader.fleet.job import (
    Job,
    Lease,
    QueueFull,
    Refused,
    State,
    TooLate,
    TooMany,
    Worker,
    WorkerSeen,
)
from grader.fleet.ledger import Ledger

__all__ = [
    "Job",
    "Lease",
    "Ledger",
    "QueueFull",
    "Refused",
    "State",
    "TooLate",
    "TooMany",
    "Worker",
    "WorkerSeen",
]
