"""Queries on jobs and workers: the reading half of the ledger, and the choice of the next job."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    RowMapping,
    ScalarSelect,
    Select,
    bindparam,
    func,
    or_,
    select,
    true,
    tuple_,
)

from grader.board.owners import is_owned_by, owner_name
from grader.board.store import MAX_ID
from grader.db.engine import connect, free_bytes
from grader.db.tables import jobs, submissions, workers
from grader.fleet.job import (
    IN_FLIGHT_STATES,
    LEASED_STATES,
    DailyLimitReached,
    DiskNearlyFull,
    Job,
    QueueFull,
    QueueHead,
    QueuePlace,
    QuotaExceeded,
    State,
    TooManyInFlight,
    WorkerStatus,
    gpu_matches,
)
from grader.fleet.queue_order import positions
from grader.fleet.team_entries import COUNTS
from grader.judge import Progress
from grader.report import one_line

RETRY_AFTER_S = 30
"""When a refused submitter may try again: about the time of one grading."""

DISK_RETRY_AFTER_S = 300
"""When a submitter may try again after a full disk: a person must make room."""

PROGRESS = TypeAdapter(Progress)
"""Progress is stored as JSON."""

DAY = timedelta(days=1)
"""The window of a board's daily limit. It slides: no hour of the day begins a new one."""

Problems = Collection[str] | Mapping[str, str]
"""Names of problems; a mapping name → digest selects these versions only."""

_JOBS = select(submissions, jobs).join(jobs, jobs.c.submission_id == submissions.c.id)
_JOB = _JOBS.where(submissions.c.id == bindparam("id"))
_POSITIONS = positions()
_POSITION = select(_POSITIONS.c.position).where(_POSITIONS.c.submission_id == bindparam("id"))
_QUEUE_ORDER = (
    _POSITIONS.c.position.is_not(None),
    _POSITIONS.c.position,
    submissions.c.rejudge_id.is_not(None),
    submissions.c.id,
)
"""First the jobs that workers hold, then what waits."""
_QUEUE = (
    _JOBS.add_columns(_POSITIONS.c.position)
    .join(_POSITIONS, _POSITIONS.c.submission_id == submissions.c.id)
    .order_by(*_QUEUE_ORDER)
)
_PLACES = (
    select(
        jobs.c.submission_id,
        submissions.c.user,
        submissions.c.problem,
        submissions.c.problem_digest,
        submissions.c.language,
        submissions.c.gpu,
        jobs.c.state,
        _POSITIONS.c.position,
    )
    .join(submissions, submissions.c.id == jobs.c.submission_id)
    .join(_POSITIONS, _POSITIONS.c.submission_id == jobs.c.submission_id)
    .where(submissions.c.rejudge_id.is_(None))
    .order_by(*_QUEUE_ORDER)
)
_QUEUE_VERSION = (
    select(
        jobs.c.state,
        func.count(),
        func.max(jobs.c.submission_id),
        func.max(jobs.c.updated_at),
    )
    .where(jobs.c.state.in_(IN_FLIGHT_STATES), jobs.c.batch_id.is_(None))
    .group_by(jobs.c.state)
    .order_by(jobs.c.state)
)
_USER_QUEUE_VERSION = _QUEUE_VERSION.join(
    submissions, submissions.c.id == jobs.c.submission_id
).where(submissions.c.user == bindparam("user"))


class LedgerReader:
    """The reading half of the ledger. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def job(self, submission_id: int) -> Job | None:
        """The job of a submission; None if there is no such submission."""
        if not is_valid_id(submission_id):
            return None
        parameters = {"id": submission_id}
        with connect(self._engine) as connection:
            row = connection.execute(_JOB, parameters).mappings().first()
            if row is None:
                return None
            queued = row["state"] == State.QUEUED
            return _job(row, connection.scalar(_POSITION, parameters) if queued else None)

    def queue(self) -> list[Job]:
        """The jobs in flight without items of batches: first those that workers hold, then the
        queue in order."""
        with connect(self._engine) as connection:
            rows = connection.execute(_QUEUE).mappings().all()
        return [_job(row, row["position"]) for row in rows]

    def queue_head(self, problems: Collection[str], limit: int) -> QueueHead:
        """The places of the users' jobs of these problems, and the first `limit` jobs.

        Two queries, however long the queue is. Positions count the jobs of all problems.
        """
        with connect(self._engine) as connection:
            rows = connection.execute(_PLACES)
            found = (QueuePlace(*row[:6], State(row[6]), row[7]) for row in rows)
            places = [place for place in found if place.problem in problems]
            first = {place.submission_id: place.position for place in places[:limit]}
            jobs_of = connection.execute(_JOBS.where(submissions.c.id.in_(first))).mappings()
            by_id = {row["id"]: _job(row, first[row["id"]]) for row in jobs_of}
        return QueueHead(places, [by_id[number] for number in first])

    def queue_version(self, user: str | None = None) -> object:
        """A small value that differs after a change of a job in flight, also of its progress. Items
        of batches do not count.

        Two changes that are committed out of order may have the same value.

        user: whose jobs count; all if None.
        """
        query = _QUEUE_VERSION if user is None else _USER_QUEUE_VERSION
        values = {} if user is None else {"user": user}
        with connect(self._engine) as connection:
            return [tuple(row) for row in connection.execute(query, values)]

    def held(self) -> list[Job]:
        """The held jobs, oldest first."""
        query = _JOBS.where(jobs.c.state == State.HELD).order_by(submissions.c.id)
        with connect(self._engine) as connection:
            return [_job(row, None) for row in connection.execute(query).mappings()]

    def submitted_in_a_day(self, user: str, team: str | None = None) -> dict[str, int]:
        """How many submissions of the last 24 hours count toward the daily limit of each problem's
        board: those for a team, or without one those for the user alone."""
        query = _counted_in_a_day(user, team, self._now(), submissions.c.problem, func.count())
        with connect(self._engine) as connection:
            rows = connection.execute(query.group_by(submissions.c.problem))
            return {problem: int(count) for problem, count in rows}

    def workers(self, alive_s: float, *, or_drained: bool = False) -> list[WorkerStatus]:
        """The workers that announced themselves in the last `alive_s` seconds, by name; with
        `or_drained`, also those that are drained."""
        listed = workers.c.last_seen >= self._now() - timedelta(seconds=alive_s)
        if or_drained:
            listed = or_(listed, workers.c.drained_at.is_not(None))
        query = select(workers).where(listed).order_by(workers.c.name)
        with connect(self._engine) as connection:
            return [WorkerStatus(**row) for row in connection.execute(query).mappings()]

    def leases(self) -> dict[str, int]:
        """The number of jobs that each worker holds now, by its name without a kind of slots."""
        query = (
            select(jobs.c.leased_by, func.count())
            .where(jobs.c.state.in_(LEASED_STATES))
            .group_by(jobs.c.leased_by)
        )
        with connect(self._engine) as connection:
            return {str(name): int(count) for name, count in connection.execute(query)}


def is_valid_id(submission_id: int) -> bool:
    """Whether a number is in the range of ids; databases reject a comparison with any other."""
    return 0 < submission_id <= MAX_ID


def check_limits(connection: Connection, user: str, max_in_flight: int, max_queue: int) -> None:
    """Raise `TooManyInFlight` or `QueueFull` if no submission of the user can be accepted.

    Submissions of rejudges and items of batches do not count. The caller's transaction must exclude
    other submits.
    """
    count = select(func.count()).select_from(jobs)
    of_users = count.join(submissions, submissions.c.id == jobs.c.submission_id).where(
        jobs.c.batch_id.is_(None), submissions.c.rejudge_id.is_(None)
    )
    in_flight = of_users.where(jobs.c.state.in_(IN_FLIGHT_STATES), submissions.c.user == user)
    if (connection.scalar(in_flight) or 0) >= max_in_flight:
        raise TooManyInFlight(
            f"{user} has {max_in_flight} submissions unfinished, which is the limit; "
            "wait for one to finish, or cancel it",
            RETRY_AFTER_S,
        )
    if (connection.scalar(of_users.where(jobs.c.state == State.QUEUED)) or 0) >= max_queue:
        raise QueueFull(f"{max_queue} submissions wait already; try again later", RETRY_AFTER_S)


def check_daily_limit(
    connection: Connection,
    user: str,
    problem: str,
    daily_limit: int,
    now: datetime,
    team: str | None = None,
) -> None:
    """Raise `DailyLimitReached` if the user, or all members for a `team`, have submitted
    `daily_limit` files to the problem's board in the last 24 hours.

    Submissions of rejudges, items of batches, and what was cancelled before a worker had it do not
    count. The caller's transaction must exclude other submits.
    """
    # The oldest of the last `daily_limit` submissions is the next to leave the window.
    query = _counted_in_a_day(user, team, now, submissions.c.created_at)
    query = query.where(submissions.c.problem == problem)
    query = query.order_by(submissions.c.created_at.desc()).offset(daily_limit - 1).limit(1)
    oldest = connection.scalar(query)
    if oldest is None:
        return
    free_at = oldest + DAY
    raise DailyLimitReached(
        f"{owner_name(user, team)} has submitted {daily_limit} files to {problem} in the last 24 "
        f"hours, which is the limit; the next may come at {free_at:%Y-%m-%d %H:%M:%S} UTC",
        math.ceil((free_at - now).total_seconds()),
    )


def check_storage(
    connection: Connection,
    user: str,
    source_bytes: int,
    max_stored_bytes: int | None,
    min_free_bytes: int,
) -> None:
    """Raise `DiskNearlyFull` or `QuotaExceeded` if a source of this size cannot be stored.

    The caller's transaction must exclude other submits. What the disk has free is not known of
    every database.
    """
    free = free_bytes(connection)
    if free is not None and free < min_free_bytes:
        raise DiskNearlyFull(
            "the server's disk is nearly full, so it takes no submissions; try again later, or "
            "tell its admin",
            DISK_RETRY_AFTER_S,
        )
    if max_stored_bytes is None:
        return
    used = stored_bytes(connection, user)
    if used + source_bytes > max_stored_bytes:
        raise QuotaExceeded(
            f"{user}'s stored sources take {used:,} of {max_stored_bytes:,} bytes, and this one "
            f"has {source_bytes:,}; wait until old ones are removed, or ask an admin for more"
        )


def stored_bytes(connection: Connection, user: str | None = None) -> int:
    """What the stored sources of a user's own submissions take, or those of all users."""
    query = select(func.sum(submissions.c.stored_bytes))
    if user is not None:
        query = query.where(submissions.c.user == user)
    return int(connection.scalar(query) or 0)


def is_drained(connection: Connection, worker: str, gpu: str | None) -> bool:
    """Whether a worker, or its kind of slots with this GPU, gets no further jobs."""
    names = (one_line(worker, 200), one_line(f"{worker} {gpu or 'cpu'}", 200))
    query = select(func.count()).where(workers.c.name.in_(names), workers.c.drained_at.is_not(None))
    return bool(connection.scalar(query))


def next_job(
    connection: Connection,
    now: datetime,
    problems: Problems | None,
    gpu: str | None,
    languages: Collection[str] | None,
    batch_id: int | None = None,
) -> ScalarSelect[int]:
    """A subquery for the submission id of a worker's next job, with its row locked.

    The parameters are those of `Ledger.claim`. The job is an item of the batch, or of none.
    """
    gpu_types = _requested_types(connection, gpu, _is(jobs.c.batch_id, batch_id))
    can_take = (
        or_(submissions.c.gpu.is_(None), submissions.c.gpu.in_(gpu_types)),
        _is_among(problems),
        true() if languages is None else submissions.c.language.in_(languages),
    )
    candidate = jobs.alias("candidate")
    query = select(candidate.c.submission_id).where(
        candidate.c.state == State.QUEUED,
        _is(candidate.c.batch_id, batch_id),
        _is_due(candidate, now),
    )
    if batch_id is None:
        ready = positions(_is_due(jobs, now), *can_take)
        query = query.join(ready, ready.c.submission_id == candidate.c.submission_id)
        query = query.order_by(ready.c.position)
    else:
        query = query.join(submissions, submissions.c.id == candidate.c.submission_id)
        query = query.where(*can_take).order_by(candidate.c.submission_id)
    return query.limit(1).with_for_update(of=candidate, skip_locked=True).scalar_subquery()


def _counted_in_a_day(user: str, team: str | None, now: datetime, *columns: Any) -> Select[Any]:
    """The `columns` of the submissions for a team, or else for a user alone, that count toward
    daily limits."""
    return (
        select(*columns)
        .join_from(submissions, jobs, jobs.c.submission_id == submissions.c.id)
        .where(
            is_owned_by(user, team),
            submissions.c.created_at > now - DAY,
            submissions.c.rejudge_id.is_(None),
            jobs.c.batch_id.is_(None),
            COUNTS,
        )
    )


def _is_due(table: FromClause, now: datetime) -> ColumnElement[bool]:
    """Whether the delay after a failure is over."""
    return or_(table.c.not_before.is_(None), table.c.not_before <= now)


def _is_among(problems: Problems | None) -> ColumnElement[bool]:
    if problems is None:
        return true()
    if isinstance(problems, Mapping):
        version = tuple_(submissions.c.problem, submissions.c.problem_digest)
        return version.in_(problems.items())
    return submissions.c.problem.in_(problems)


def _is(column: ColumnElement[int], number: int | None) -> ColumnElement[bool]:
    return column.is_(None) if number is None else column == number


def _requested_types(
    connection: Connection, gpu: str | None, among: ColumnElement[bool]
) -> list[str]:
    """The GPU types that queued jobs `among` all request and `gpu` matches."""
    if gpu is None:
        return []
    query = (
        select(submissions.c.gpu)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .where(jobs.c.state == State.QUEUED, among, submissions.c.gpu.is_not(None))
        .distinct()
    )
    return [requested for requested in connection.scalars(query) if gpu_matches(gpu, requested)]


def _job(row: RowMapping, position: int | None) -> Job:
    converted = {"submission_id", "state", "position", "progress"}
    copied = {field.name for field in fields(Job)} - converted
    progress = row["progress"]
    return Job(
        submission_id=row["id"],
        state=State(row["state"]),
        position=position,
        progress=None if progress is None else PROGRESS.validate_json(progress),
        **{name: row[name] for name in copied},
    )
