"""What waits for an admin: gradings that failed too often, and results that do not count yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from grader.fleet import Job
from grader.fleet.ledger import ROOFLINE
from grader.server.services.admin_service import HeldResult
from grader.server.services.container import Services


@dataclass(frozen=True)
class HeldSubmission:
    """A submission that is held for an admin to look at: its grading, or its result."""

    id: int
    user: str
    problem: str
    name: str
    reason: str | None
    failures: int
    deaths: int
    submitted_at: datetime
    rejudge_id: int | None
    result_id: int | None = None
    """The held result, which does not count; None for a grading that failed."""
    worker: str | None = None
    """The worker that graded the held result."""


def list_held(services: Services) -> list[HeldSubmission]:
    """What is held, oldest submission first. Raises `BoardError` if the database fails."""
    failed = [_grading(job) for job in services.ledger.held()]
    doubtful = [_result(one) for one in services.admin.held_results()]
    return sorted(failed + doubtful, key=lambda one: one.id)


def _grading(job: Job) -> HeldSubmission:
    return HeldSubmission(
        id=job.submission_id,
        user=job.user,
        problem=job.problem,
        name=job.name,
        reason=job.held_reason,
        failures=job.failures,
        deaths=job.deaths,
        submitted_at=job.created_at,
        rejudge_id=job.rejudge_id,
    )


def _result(held: HeldResult) -> HeldSubmission:
    why = "above the roofline" if held.by == ROOFLINE else f"held by {held.by}"
    return HeldSubmission(
        id=held.submission_id,
        user=held.user,
        problem=held.problem,
        name=held.name,
        reason=f"result of the worker {held.worker}, {why}",
        failures=0,
        deaths=0,
        submitted_at=held.submitted_at,
        rejudge_id=held.rejudge_id,
        result_id=held.result_id,
        worker=held.worker,
    )
