"""What the ledger tells: jobs by number, by user and by state, and the workers that are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Engine, RowMapping, and_, bindparam, func, or_, select

from grader.board.store import MAX_ID
from grader.db.engine import connect
from grader.db.tables import jobs, submissions, workers
from grader.fleet.job import IN_FLIGHT, Job, State, WorkerSeen
from grader.judge import Progress

PROGRESS = TypeAdapter(Progress)
"""How progress is kept: as JSON."""

_JOBS = select(submissions, jobs).join(jobs, jobs.c.submission_id == submissions.c.id)
_JOB = _JOBS.where(submissions.c.id == bindparam("number"))
_MINE = submissions.alias("mine")
_BEFORE = or_(
    and_(submissions.c.rejudge_id.is_(None), _MINE.c.rejudge_id.is_not(None)),
    and_(
        submissions.c.rejudge_id.is_(None) == _MINE.c.rejudge_id.is_(None),
        submissions.c.id <= _MINE.c.id,
    ),
)
_POSITION = (
    select(func.count())
    .select_from(submissions)
    .join(jobs, jobs.c.submission_id == submissions.c.id)
    .join(_MINE, _MINE.c.id == bindparam("number"))
    .where(jobs.c.state == State.QUEUED, _BEFORE)
)
_LIVE_FIRST = (submissions.c.rejudge_id.is_not(None), submissions.c.id)
"""The order of the queue: what users wait for goes before what is only graded again."""


class Reader:
    """The reading half of the ledger. Every method raises `BoardError` when the database cannot be
    used."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def job(self, submission_id: int) -> Job | None:
        """A submission and its job; None when there is none of this number."""
        if not is_possible(submission_id):
            return None
        number = {"number": submission_id}
        with connect(self._engine) as connection:
            row = connection.execute(_JOB, number).mappings().first()
            if row is None:
                return None
            waits = row["state"] == State.QUEUED
            return _job(row, connection.scalar(_POSITION, number) if waits else None)

    def queue(self) -> list[Job]:
        """The jobs in flight: those in hand, then those that wait, in the order of the queue."""
        found = self._jobs(jobs.c.state.in_(IN_FLIGHT))
        waiting = [row for row in found if row["state"] == State.QUEUED]
        return [_job(row, None) for row in found if row["state"] != State.QUEUED] + [
            _job(row, position) for position, row in enumerate(waiting, start=1)
        ]

    def held(self) -> list[Job]:
        """The jobs that wait for a person, oldest first."""
        return [_job(row, None) for row in self._jobs(jobs.c.state == State.HELD)]

    def workers(self, alive_s: float) -> list[WorkerSeen]:
        """The workers that were there in the last `alive_s` seconds, by name."""
        alive = workers.c.last_seen >= self._now() - timedelta(seconds=alive_s)
        query = select(workers).where(alive).order_by(workers.c.name)
        with connect(self._engine) as connection:
            return [WorkerSeen(**row) for row in connection.execute(query).mappings()]

    def _jobs(self, where: ColumnElement[bool]) -> list[RowMapping]:
        with connect(self._engine) as connection:
            found = connection.execute(_JOBS.where(where).order_by(*_LIVE_FIRST))
            return list(found.mappings())


def is_possible(submission_id: int) -> bool:
    """Whether a number can be an id at all; databases refuse to compare with one that cannot."""
    return 0 < submission_id <= MAX_ID


def _job(row: RowMapping, position: int | None) -> Job:
    made = {"submission_id", "state", "position", "progress"}
    taken = {field.name for field in fields(Job)} - made
    progress = row["progress"]
    return Job(
        submission_id=row["id"],
        state=State(row["state"]),
        position=position,
        progress=None if progress is None else PROGRESS.validate_json(progress),
        **{name: row[name] for name in taken},
    )
