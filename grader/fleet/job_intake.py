"""What gets into the queue, and who gets it out: the bounds, the blobs, and the choice of the next
job for a worker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
)

from grader.db.tables import blobs, jobs, submissions
from grader.fleet.job import IN_FLIGHT, QueueFull, State, TooMany, is_of_type
from grader.submission import Submission

RETRY_AFTER_S = 30
"""When one whose submission is refused may try again: about the time of one grading."""

Problems = Collection[str] | Mapping[str, str]
"""Names of problems, or name → digest, which takes them in these versions only."""


def admit(connection: Connection, user: str, max_in_flight: int, max_queue: int) -> None:
    """Raise `TooMany` or `QueueFull` when no more can be taken, rejudges not counted.

    For a transaction that no other submission can get between.
    """
    count = select(func.count()).select_from(jobs)
    own = count.join(submissions, submissions.c.id == jobs.c.submission_id).where(
        submissions.c.rejudge_id.is_(None)
    )
    unfinished = own.where(jobs.c.state.in_(IN_FLIGHT), submissions.c.user == user)
    if (connection.scalar(unfinished) or 0) >= max_in_flight:
        raise TooMany(
            f"{user} has {max_in_flight} submissions unfinished, which is the most at one time; "
            "wait for one, or cancel it",
            RETRY_AFTER_S,
        )
    if (connection.scalar(own.where(jobs.c.state == State.QUEUED)) or 0) >= max_queue:
        raise QueueFull(f"{max_queue} submissions wait already; try again later", RETRY_AFTER_S)


def store_blob(connection: Connection, submission: Submission) -> None:
    """Keep a source, once however often it is handed in."""
    known = select(blobs.c.sha256).where(blobs.c.sha256 == submission.sha256)
    if connection.scalar(known) is None:
        connection.execute(
            insert(blobs).values(
                sha256=submission.sha256,
                size_bytes=len(submission.source),
                content=submission.source,
            )
        )


def next_job(
    connection: Connection,
    now: datetime,
    problems: Problems | None,
    gpu: str | None,
    languages: Collection[str] | None,
) -> ScalarSelect[int]:
    """The number of the job that is next for a worker, its row locked; see `Ledger.claim`."""
    waiting = jobs.alias("waiting")
    types = _types(connection, gpu)
    return (
        select(waiting.c.submission_id)
        .join(submissions, submissions.c.id == waiting.c.submission_id)
        .where(
            waiting.c.state == State.QUEUED,
            or_(waiting.c.not_before.is_(None), waiting.c.not_before <= now),
            or_(submissions.c.gpu.is_(None), submissions.c.gpu.in_(types)),
            _among(problems),
            true() if languages is None else submissions.c.language.in_(languages),
        )
        .order_by(submissions.c.rejudge_id.is_not(None), waiting.c.submission_id)
        .limit(1)
        .with_for_update(of=waiting, skip_locked=True)
        .scalar_subquery()
    )


def _among(problems: Collection[str] | Mapping[str, str] | None) -> ColumnElement[bool]:
    if problems is None:
        return true()
    if isinstance(problems, Mapping):
        version = tuple_(submissions.c.problem, submissions.c.problem_digest)
        return version.in_(problems.items())
    return submissions.c.problem.in_(problems)


def _types(connection: Connection, gpu: str | None) -> list[str]:
    """The types of GPU that waiting jobs ask for and this one is of."""
    if gpu is None:
        return []
    asked = (
        select(submissions.c.gpu)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .where(jobs.c.state == State.QUEUED, submissions.c.gpu.is_not(None))
        .distinct()
    )
    return [wanted for wanted in connection.scalars(asked) if is_of_type(gpu, wanted)]
