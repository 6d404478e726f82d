"""The ledger of jobs: what was handed in, who has it now, and what became of it.

The database is the truth. Every change of a job's state is one conditional UPDATE, and its row
count tells whether it happened; whoever comes late, or with a token that is no longer the job's,
changes nothing. The states are drawn in `grader.fleet.job`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    RowMapping,
    Update,
    case,
    delete,
    false,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from grader.board.store import Board, insert_result
from grader.db.engine import BoardError, open_engine, transaction
from grader.db.migrate import upgrade
from grader.db.tables import UtcDateTime, blobs, jobs, submissions, voids, workers
from grader.fleet.job import (
    IN_HAND,
    MAX_SOURCE_BYTES,
    UNFINISHED,
    Lease,
    State,
    Ticket,
    TooLate,
    Worker,
)
from grader.fleet.job_intake import admit, next_job, store_blob
from grader.fleet.job_queries import PROGRESS, Reader, is_possible
from grader.judge import Progress
from grader.report import Report, one_line
from grader.submission import Submission

STRIKES = 3
"""A job is held for a person at so many judge errors, or so many workers dead over it."""

FORGOTTEN = timedelta(days=1)
"""A worker that was not there for so long is no longer known. Hosts may have new names each day."""

PAUSES_S = (10.0, 60.0)
"""How long a job waits after its first judge error, and after its second."""

_FREE: dict[Column[Any], Any] = {
    jobs.c.lease_token: None,
    jobs.c.leased_by: None,
    jobs.c.lease_until: None,
    jobs.c.progress: None,
}
"""Of a job that nobody has."""


class Ledger(Reader):
    """The jobs of one database: all that changes them, and what `Reader` tells.

    Safe to use from several threads and processes at once.

    Every method raises `BoardError` when the database cannot be used. Times are by the clock of the
    calling process: the clocks of servers that share a database must agree within a lease.
    """

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        super().__init__(engine, now)
        self.board = Board(engine)
        """The board in the same database."""

    @classmethod
    def open(cls, url: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Ledger:
        """Open the ledger at a database URL, its tables made or migrated first.

        A database that `Board.open` made is taken over with its results. `sqlite://` is the
        in-memory twin, for one thread. Raises `BoardError` like `Board.open`.
        """
        engine = open_engine(url, create=True)
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
        deadline: datetime | None = None,
    ) -> int:
        """Store a submission and queue its job; when this returns its number, it cannot be lost.

        `gpu` is the type of GPU it must run on, None for any worker. Raises `TooLate` at the
        `deadline` and after it, `TooMany` when the user has `max_in_flight` jobs unfinished,
        `QueueFull` when `max_queue` jobs wait, and ValueError for a source larger than
        `MAX_SOURCE_BYTES`.
        """
        if len(submission.source) > MAX_SOURCE_BYTES:
            raise ValueError(f"a source of more than {MAX_SOURCE_BYTES:,} bytes is not stored")
        with transaction(self._engine, "submit") as connection:
            now = self._now()  # it may have waited for its turn
            if deadline is not None and now >= deadline:
                raise TooLate(problem, deadline)
            admit(connection, user, max_in_flight, max_queue)
            store_blob(connection, submission)
            added = connection.execute(
                insert(submissions).values(
                    user=user,
                    problem=problem,
                    problem_digest=problem_digest,
                    name=one_line(submission.name, 200),
                    language=submission.language,
                    sha256=submission.sha256,
                    gpu=gpu,
                    created_at=now,
                )
            )
            assert added.inserted_primary_key is not None
            number = int(added.inserted_primary_key[0])
            connection.execute(
                insert(jobs).values(
                    submission_id=number,
                    state=State.QUEUED,
                    failures=0,
                    deaths=0,
                    updated_at=now,
                )
            )
        return number

    def claim(
        self,
        worker: str,
        *,
        lease_s: float,
        problems: Collection[str] | Mapping[str, str] | None = None,
        gpu: str | None = None,
        languages: Collection[str] | None = None,
    ) -> Lease | None:
        """Lease the job that is next, of any of `problems` and `languages` (None for all).

        Users' own submissions go before those of rejudges, older ones before newer ones. A mapping
        name → digest takes problems only in these versions. A job that asks for a type of GPU goes
        only to a worker whose `gpu`, its full name, is of that type. None when there is no job for
        this worker now.
        """
        now = self._now()
        token = secrets.token_hex(16)
        until = now + timedelta(seconds=lease_s)
        with transaction(self._engine) as connection:
            following = next_job(connection, now, problems, gpu, languages)
            number = connection.scalar(
                update(jobs)
                .where(
                    jobs.c.submission_id == following,
                    jobs.c.state == State.QUEUED,
                )
                .values(
                    state=State.LEASED,
                    not_before=None,
                    lease_token=token,
                    leased_by=one_line(worker, 200),
                    lease_until=until,
                    updated_at=now,
                )
                .returning(jobs.c.submission_id)
            )
            return None if number is None else _lease(connection, number, token, until)

    def begin(self, lease: Ticket) -> bool:
        """The worker starts to grade. False when the lease is no longer its own."""
        return self._change(lease, (State.LEASED,), {jobs.c.state: State.RUNNING})

    def heartbeat(self, lease: Ticket, lease_s: float, progress: Progress | None = None) -> bool:
        """Move the deadline to `lease_s` seconds from now, and tell where the grading is.

        False when the lease is no longer the worker's, which should stop grading then. A lease that
        has expired and was not swept yet lives again.
        """
        until = self._now() + timedelta(seconds=lease_s)
        values: dict[Column[Any], Any] = {jobs.c.lease_until: until}
        if progress is not None:
            values[jobs.c.progress] = PROGRESS.dump_json(progress).decode()
        return self._change(lease, IN_HAND, values)

    def finish(self, lease: Ticket, report: Report) -> int | None:
        """Put the result on the board and end the job, both or neither; the result's number.

        None when the lease is no longer the worker's: nothing is written then. Raises ValueError
        for a report without a verdict on the submission (that is for `fail`), or one of another
        submission or another version of the problem.
        """
        ended = {
            jobs.c.state: State.DONE,
            jobs.c.lease_token: None,
            jobs.c.lease_until: None,
            jobs.c.progress: None,
            jobs.c.updated_at: self._now(),
        }
        job = jobs.c.submission_id == lease.submission_id
        with transaction(self._engine) as connection:
            # First, so that of two who finish the second waits for the first, and then finds its
            # token gone. An exception below takes this back as well.
            if connection.execute(_if(lease, (State.RUNNING,)).values(ended)).rowcount != 1:
                return None
            handed_in = _submission(connection, lease.submission_id)
            graded = {
                "sha256": report.submission_sha256,
                "language": report.language,
                "problem": report.problem,
                "problem_digest": report.problem_digest,
            }
            if any(handed_in[key] != value for key, value in graded.items()):
                raise ValueError(f"the report is not one of submission {lease.submission_id}")
            number = insert_result(connection, report, handed_in["user"], handed_in["content"])
            connection.execute(update(jobs).where(job).values(result_id=number))
            if handed_in["rejudge_id"] is not None:
                # It counts from the moment that somebody applies the rejudge, not before.
                preview = {
                    "result_id": number,
                    "why": "preview",
                    "at": self._now(),
                    "by": "rejudge",
                }
                connection.execute(insert(voids).values(preview))
        return number

    def fail(self, lease: Ticket, reason: str) -> bool:
        """The judge failed: queue the job again after a pause, or hold it at the third failure.

        False when the lease is no longer the worker's.
        """
        now = self._now()
        pauses = [
            (jobs.c.failures == count, literal(now + timedelta(seconds=pause_s), UtcDateTime))
            for count, pause_s in enumerate(PAUSES_S)
        ]
        return self._change(
            lease, IN_HAND, _strike(jobs.c.failures, reason) | {jobs.c.not_before: case(*pauses)}
        )

    def give_back(self, lease: Ticket) -> bool:
        """Queue the job again, at its old place and with nothing counted, since the worker stops.

        False when the lease is no longer the worker's.
        """
        return self._change(lease, IN_HAND, given_back())

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
        with transaction(self._engine) as connection:
            taken_back = _strike(jobs.c.deaths, reason) | {jobs.c.updated_at: self._now()}
            return connection.execute(swept.values(taken_back)).rowcount

    def hold_changed(self, problems: Mapping[str, str]) -> int:
        """Hold for a person what waits for another version of one of `problems` (name → digest)
        than this, since nobody can grade it any more; how many."""
        changed = select(submissions.c.id).where(
            or_(
                false(),
                *(
                    (submissions.c.problem == name) & (submissions.c.problem_digest != digest)
                    for name, digest in problems.items()
                ),
            )
        )
        values = {
            jobs.c.state: State.HELD,
            jobs.c.held_reason: "the problem has changed since this was handed in",
            jobs.c.not_before: None,
            jobs.c.updated_at: self._now(),
        }
        waits = (jobs.c.state == State.QUEUED) & jobs.c.submission_id.in_(changed)
        with transaction(self._engine) as connection:
            return connection.execute(update(jobs).where(waits).values(values)).rowcount

    def seen(self, worker: Worker) -> None:
        """Note that a worker is there now, and what it has."""
        values = asdict(worker) | {"last_seen": self._now()}
        known = update(workers).where(workers.c.name == worker.name).values(values)
        gone = workers.c.last_seen < self._now() - FORGOTTEN
        with transaction(self._engine) as connection:
            if connection.execute(known).rowcount == 0:
                connection.execute(delete(workers).where(gone))
                # Another process may say the same at this moment.
                with suppress(IntegrityError), connection.begin_nested():
                    connection.execute(insert(workers).values(values))

    def cancel(self, submission_id: int, by: str) -> bool:
        """End a job that is not finished; the result of one that runs will be dropped.

        False when there is no such job or it is done or cancelled already.
        """
        return is_possible(submission_id) and self._change(submission_id, UNFINISHED, cancelled(by))

    def release(self, submission_id: int) -> bool:
        """Queue a held job again, its failures and deaths forgotten. False when it is not held."""
        return is_possible(submission_id) and self._change(submission_id, (State.HELD,), released())

    def _change(
        self, whose: Ticket | int, states: tuple[State, ...], values: dict[Column[Any], Any]
    ) -> bool:
        """One conditional UPDATE of the job of a lease, or of a submission's number."""
        values = values | {jobs.c.updated_at: self._now()}
        with transaction(self._engine) as connection:
            return connection.execute(_if(whose, states).values(values)).rowcount == 1


def cancelled(by: str) -> dict[Column[Any], Any]:
    """What changes in a job that is unfinished and gets cancelled."""
    ended: dict[Column[Any], Any] = {
        jobs.c.state: State.CANCELLED,
        jobs.c.cancelled_by: by,
        jobs.c.not_before: None,
        jobs.c.held_reason: None,
    }
    return ended | _FREE


def given_back() -> dict[Column[Any], Any]:
    """What changes in a job that a worker has and that is queued again, with nothing counted."""
    return {jobs.c.state: State.QUEUED} | _FREE


def released() -> dict[Column[Any], Any]:
    """What changes in a job that is held and gets released."""
    return {
        jobs.c.state: State.QUEUED,
        jobs.c.failures: 0,
        jobs.c.deaths: 0,
        jobs.c.held_reason: None,
    }


def _if(whose: Ticket | int, states: tuple[State, ...]) -> Update:
    """An UPDATE of one job that happens only in these states, and for a lease only by its token."""
    if not isinstance(whose, Ticket):
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
