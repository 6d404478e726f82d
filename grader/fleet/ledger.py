"""The ledger of jobs: what was handed in, who has it now, and what became of it.

The database is the truth. Every change of a job's state is one conditional UPDATE, and its row
count tells whether it happened; whoever comes late, or with a token that is no longer the job's,
changes nothing. The states are drawn in `grader.fleet.job`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    RowMapping,
    Update,
    case,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)

from grader.board.database import BoardError, engine_of, reading, writing
from grader.board.store import MAX_ID, Board, insert_result
from grader.fleet.job import IN_FLIGHT, IN_HAND, Job, Lease, QueueFull, State, TooMany
from grader.fleet.schema import Moment, blobs, jobs, submissions, upgrade
from grader.report import Report, one_line
from grader.submission import Submission

MAX_SOURCE_BYTES = 16 << 20
"""The largest source that is stored, whatever a problem's own limit says."""

STRIKES = 3
"""A job is held for a person at so many judge errors, or so many workers dead over it."""

PAUSES_S = (10.0, 60.0)
"""How long a job waits after its first judge error, and after its second."""

RETRY_AFTER_S = 30
"""When one whose submission is refused may try again: about the time of one grading."""

_FREE: dict[Column[Any], Any] = {
    jobs.c.lease_token: None,
    jobs.c.leased_by: None,
    jobs.c.lease_until: None,
}


class Ledger:
    """The jobs of one database. Safe to use from several threads and processes at once.

    Every method raises `BoardError` when the database cannot be used. Times are by the clock of the
    calling process: the clocks of servers that share a database must agree within a lease.
    """

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now
        self.board = Board(engine)
        """The board in the same database."""

    @classmethod
    def open(cls, url: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Ledger:
        """Open the ledger at a database URL, its tables made or migrated first.

        A database that `Board.open` made is taken over with its results. `sqlite://` is the
        in-memory twin, for one thread. Raises `BoardError` like `Board.open`.
        """
        engine = engine_of(url, create=True)
        try:
            upgrade(engine)
        except BoardError:
            engine.dispose()
            raise
        return cls(engine, now)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def submit(
        self,
        user: str,
        problem: str,
        problem_digest: str,
        submission: Submission,
        gpu: str | None = None,
        *,
        max_in_flight: int = 10,
        max_queue: int = 1000,
    ) -> int:
        """Store a submission and queue its job; when this returns its number, it cannot be lost.

        `gpu` is the type of GPU it must run on, None for any worker. Raises `TooMany` when the user
        has `max_in_flight` jobs unfinished, `QueueFull` when `max_queue` jobs wait, and ValueError
        for a source larger than `MAX_SOURCE_BYTES`.
        """
        if len(submission.source) > MAX_SOURCE_BYTES:
            raise ValueError(f"a source of more than {MAX_SOURCE_BYTES:,} bytes is not stored")
        with writing(self._engine, "submit") as connection:
            _admit(connection, user, max_in_flight, max_queue)
            _store_blob(connection, submission)
            added = connection.execute(
                insert(submissions).values(
                    user=user,
                    problem=problem,
                    problem_digest=problem_digest,
                    name=one_line(submission.name, 200),
                    language=submission.language,
                    sha256=submission.sha256,
                    gpu=gpu,
                    created_at=self._now(),
                )
            )
            assert added.inserted_primary_key is not None
            number = int(added.inserted_primary_key[0])
            connection.execute(
                insert(jobs).values(submission_id=number, state=State.QUEUED, failures=0, deaths=0)
            )
        return number

    def claim(
        self,
        worker: str,
        *,
        lease_s: float,
        problems: Collection[str] | None = None,
        gpu: str | None = None,
    ) -> Lease | None:
        """Lease the oldest job that waits, of any of `problems` (None for all).

        A job that asks for a type of GPU goes only to a worker whose `gpu` is that type. None when
        there is no job for this worker now.
        """
        now = self._now()
        waiting = jobs.alias("waiting")
        oldest = (
            select(waiting.c.submission_id)
            .join(submissions, submissions.c.id == waiting.c.submission_id)
            .where(
                waiting.c.state == State.QUEUED,
                or_(waiting.c.not_before.is_(None), waiting.c.not_before <= now),
                or_(submissions.c.gpu.is_(None), submissions.c.gpu == gpu),
                true() if problems is None else submissions.c.problem.in_(problems),
            )
            .order_by(waiting.c.submission_id)
            .limit(1)
            .with_for_update(of=waiting, skip_locked=True)
        )
        token = secrets.token_hex(16)
        until = now + timedelta(seconds=lease_s)
        taken = (
            update(jobs)
            .where(jobs.c.submission_id == oldest.scalar_subquery(), jobs.c.state == State.QUEUED)
            .values(
                state=State.LEASED,
                not_before=None,
                lease_token=token,
                leased_by=one_line(worker, 200),
                lease_until=until,
            )
            .returning(jobs.c.submission_id)
        )
        with writing(self._engine) as connection:
            number = connection.scalar(taken)
            return None if number is None else _lease(connection, number, token, until)

    def begin(self, lease: Lease) -> bool:
        """The worker starts to grade. False when the lease is no longer its own."""
        return self._change(lease, (State.LEASED,), {jobs.c.state: State.RUNNING})

    def heartbeat(self, lease: Lease, lease_s: float) -> bool:
        """Move the deadline to `lease_s` seconds from now.

        False when the lease is no longer the worker's, which should stop grading then. A lease that
        has expired and was not swept yet lives again.
        """
        until = self._now() + timedelta(seconds=lease_s)
        return self._change(lease, IN_HAND, {jobs.c.lease_until: until})

    def finish(self, lease: Lease, report: Report) -> int | None:
        """Put the result on the board and end the job, both or neither; the result's number.

        None when the lease is no longer the worker's: nothing is written then. Raises ValueError
        for a report without a verdict on the submission (that is for `fail`), or one of another
        submission or another version of the problem.
        """
        ended = {jobs.c.state: State.DONE, jobs.c.lease_token: None, jobs.c.lease_until: None}
        job = jobs.c.submission_id == lease.submission_id
        with writing(self._engine) as connection:
            # First, so that of two who finish the second waits for the first, and then finds its
            # token gone. An exception below takes this back as well.
            if connection.execute(_if(lease, (State.RUNNING,)).values(ended)).rowcount != 1:
                return None
            handed_in = _submission(connection, lease.submission_id)
            graded = (report.submission_sha256, report.problem, report.problem_digest)
            if graded != tuple(handed_in[key] for key in ("sha256", "problem", "problem_digest")):
                raise ValueError(f"the report is not one of submission {lease.submission_id}")
            number = insert_result(connection, report, handed_in["user"], handed_in["content"])
            connection.execute(update(jobs).where(job).values(result_id=number))
        return number

    def fail(self, lease: Lease, reason: str) -> bool:
        """The judge failed: queue the job again after a pause, or hold it at the third failure.

        False when the lease is no longer the worker's.
        """
        now = self._now()
        pauses = [
            (jobs.c.failures == count, literal(now + timedelta(seconds=pause_s), Moment))
            for count, pause_s in enumerate(PAUSES_S)
        ]
        return self._change(
            lease, IN_HAND, _strike(jobs.c.failures, reason) | {jobs.c.not_before: case(*pauses)}
        )

    def give_back(self, lease: Lease) -> bool:
        """Queue the job again, at its old place and with nothing counted, since the worker stops.

        False when the lease is no longer the worker's.
        """
        return self._change(lease, IN_HAND, {jobs.c.state: State.QUEUED} | _FREE)

    def sweep(self) -> int:
        """Take back every lease that has expired, with a death counted; how many.

        Such a job is queued again, or held at its third death.
        """
        late = jobs.alias("late")
        expired = (
            select(late.c.submission_id)
            .where(late.c.state.in_(IN_HAND), late.c.lease_until < self._now())
            # A job that another sweeper, a heartbeat or a finish has at this moment is left to it.
            .with_for_update(skip_locked=True)
        )
        swept = update(jobs).where(jobs.c.submission_id.in_(expired), jobs.c.state.in_(IN_HAND))
        reason = f"{STRIKES} workers died while they had it"
        with writing(self._engine) as connection:
            return connection.execute(swept.values(_strike(jobs.c.deaths, reason))).rowcount

    def cancel(self, submission_id: int, by: str) -> bool:
        """End a job that is not finished; the result of one that runs will be dropped.

        False when there is no such job or it is done or cancelled already.
        """
        ended: dict[Column[Any], Any] = {
            jobs.c.state: State.CANCELLED,
            jobs.c.cancelled_by: by,
            jobs.c.not_before: None,
            jobs.c.held_reason: None,
        }
        return _possible(submission_id) and self._change(
            submission_id, (*IN_FLIGHT, State.HELD), ended | _FREE
        )

    def release(self, submission_id: int) -> bool:
        """Queue a held job again, its failures and deaths forgotten. False when it is not held."""
        fresh = {jobs.c.failures: 0, jobs.c.deaths: 0, jobs.c.held_reason: None}
        return _possible(submission_id) and self._change(
            submission_id, (State.HELD,), {jobs.c.state: State.QUEUED} | fresh
        )

    def job(self, submission_id: int) -> Job | None:
        """A submission and its job; None when there is none of this number."""
        if not _possible(submission_id):
            return None
        ahead = jobs.alias("ahead")
        position = select(func.count()).where(
            ahead.c.state == State.QUEUED, ahead.c.submission_id <= submission_id
        )
        query = _JOBS.add_columns(position.scalar_subquery().label("position"))
        with reading(self._engine) as connection:
            found = connection.execute(query.where(submissions.c.id == submission_id))
            row = found.mappings().first()
        return None if row is None else _job(row, row["position"])

    def queue(self) -> list[Job]:
        """The unfinished jobs: those in hand, then those that wait, in the order of the queue."""
        found = self._in_states(IN_FLIGHT)
        waiting = [row for row in found if row["state"] == State.QUEUED]
        return [_job(row, None) for row in found if row["state"] != State.QUEUED] + [
            _job(row, position) for position, row in enumerate(waiting, start=1)
        ]

    def held(self) -> list[Job]:
        """The jobs that wait for a person, oldest first."""
        return [_job(row, None) for row in self._in_states((State.HELD,))]

    def _in_states(self, states: tuple[State, ...]) -> list[RowMapping]:
        query = _JOBS.where(jobs.c.state.in_(states)).order_by(jobs.c.submission_id)
        with reading(self._engine) as connection:
            return list(connection.execute(query).mappings())

    def _change(
        self, whose: Lease | int, states: tuple[State, ...], values: dict[Column[Any], Any]
    ) -> bool:
        """One conditional UPDATE of the job of a lease, or of a submission's number."""
        with writing(self._engine) as connection:
            return connection.execute(_if(whose, states).values(values)).rowcount == 1


_JOBS = select(submissions, jobs).join(jobs, jobs.c.submission_id == submissions.c.id)


def _possible(submission_id: int) -> bool:
    """Whether a number can be an id at all; databases refuse to compare with one that cannot."""
    return 0 < submission_id <= MAX_ID


def _if(whose: Lease | int, states: tuple[State, ...]) -> Update:
    """An UPDATE of one job that happens only in these states, and for a lease only by its token."""
    if not isinstance(whose, Lease):
        return update(jobs).where(jobs.c.submission_id == whose, jobs.c.state.in_(states))
    return _if(whose.submission_id, states).where(jobs.c.lease_token == whose.token)


def _strike(count: Column[Any], reason: str) -> dict[Column[Any], Any]:
    """One more failure or death: back to the queue, or held if it is the last that is allowed."""
    last = count + 1 >= STRIKES
    return {
        count: count + 1,
        jobs.c.state: case((last, State.HELD), else_=State.QUEUED),
        jobs.c.held_reason: case((last, one_line(reason))),
        **_FREE,
    }


def _admit(connection: Connection, user: str, max_in_flight: int, max_queue: int) -> None:
    """Count what is there, in a transaction that no other submission can get between."""
    count = select(func.count()).select_from(jobs)
    unfinished = count.join(submissions, submissions.c.id == jobs.c.submission_id).where(
        jobs.c.state.in_(IN_FLIGHT), submissions.c.user == user
    )
    if (connection.scalar(unfinished) or 0) >= max_in_flight:
        raise TooMany(
            f"{user} has {max_in_flight} submissions unfinished, which is the most at one time; "
            "wait for one, or cancel it",
            RETRY_AFTER_S,
        )
    if (connection.scalar(count.where(jobs.c.state == State.QUEUED)) or 0) >= max_queue:
        raise QueueFull(f"{max_queue} submissions wait already; try again later", RETRY_AFTER_S)


def _store_blob(connection: Connection, submission: Submission) -> None:
    known = select(blobs.c.sha256).where(blobs.c.sha256 == submission.sha256)
    if connection.scalar(known) is None:
        connection.execute(
            insert(blobs).values(
                sha256=submission.sha256,
                size_bytes=len(submission.source),
                content=submission.source,
            )
        )


def _submission(connection: Connection, number: int) -> RowMapping:
    """A submission with its source as `content`."""
    query = select(submissions, blobs.c.content).join(blobs, blobs.c.sha256 == submissions.c.sha256)
    return connection.execute(query.where(submissions.c.id == number)).mappings().one()


def _lease(connection: Connection, number: int, token: str, until: datetime) -> Lease:
    row = _submission(connection, number)
    return Lease(
        submission_id=number,
        token=token,
        until=until,
        problem=row["problem"],
        problem_digest=row["problem_digest"],
        name=row["name"],
        language=row["language"],
        source=bytes(row["content"]),
        gpu=row["gpu"],
    )


def _job(row: RowMapping, position: int | None) -> Job:
    state = State(row["state"])
    taken = {field.name for field in fields(Job)} - {"submission_id", "state", "position"}
    return Job(
        submission_id=row["id"],
        state=state,
        position=position if state is State.QUEUED else None,
        **{name: row[name] for name in taken},
    )
