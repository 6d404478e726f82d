"""The ledger: every submission and its job, from the queue to the result.

The database is the only state. A call that comes too late, or with a token that is no longer the
job's, changes nothing. `grader.fleet.job` draws the states.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import (
    Connection,
    Engine,
    RowMapping,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from grader.board.store import Board, insert_result
from grader.db.engine import (
    BoardError,
    acquire_lock,
    connect,
    database_bytes,
    free_bytes,
    open_engine,
    seconds_since_disk_full,
    transaction,
)
from grader.db.migrate import upgrade
from grader.db.tables import (
    UtcDateTime,
    batch_items,
    batches,
    blobs,
    jobs,
    submissions,
    voids,
    workers,
)
from grader.fleet import batch_updates, job_updates
from grader.fleet.batch_queries import (
    batch_with_key,
    batches_in_turn,
    batches_of,
    check_batch_limits,
    old_batches,
    read_batch,
    results_after,
)
from grader.fleet.job import (
    LEASED_STATES,
    MAX_SOURCE_BYTES,
    Batch,
    BatchItem,
    BatchResult,
    DeadlinePassed,
    KeyReused,
    Lease,
    LeaseKey,
    State,
    Worker,
)
from grader.fleet.job_queries import (
    PROGRESS,
    LedgerReader,
    Problems,
    check_daily_limit,
    check_limits,
    check_storage,
    is_drained,
    next_job,
    stored_bytes,
)
from grader.fleet.retention import expired_sources, sources_before
from grader.fleet.team_entries import choose_entry
from grader.judge import Progress
from grader.report import Report, is_above_roofline, one_line
from grader.submission import Submission

WORKER_EXPIRY = timedelta(days=1)
"""A worker silent for this long is removed: hosts may have new names each day."""

SLOTS_KNOWN = timedelta(minutes=1)
"""How long an announcement's number of slots is believed. Workers repeat it every 10 s."""

RETRY_DELAYS_S = (10.0, 60.0)
"""Delay before the next try, after a job's first and second judge error."""


ROOFLINE = "roofline"
"""Stands in `voids.by` for results that are held for being faster than the hardware allows."""


class SourceBatch(NamedTuple):
    """A batch of `Ledger.remove_old_sources`."""

    removed: int
    """The number of submissions whose sources were removed."""
    last: int | None
    """The highest id that it looked at; None if there was no submission left to look at."""


class Storage(NamedTuple):
    """What the database takes."""

    database_bytes: int
    source_bytes: int
    """The stored sources, as the users' quotas count them."""


class Ledger(LedgerReader):
    """The jobs of one database, for reading and writing.

    Safe to use from several threads and processes. Every method raises `BoardError` if the database
    fails. Times are by this process's clock, so the clocks of servers that share a database must
    agree to within the length of a lease.
    """

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        super().__init__(engine, now)
        self.board = Board(engine)
        """The board in the same database."""

    @classmethod
    def open(cls, url: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Ledger:
        """Open the ledger at a database URL, and create or migrate its tables.

        A database that `Board.open` made keeps its results. `sqlite://` is an in-memory ledger for
        one thread. Raises `BoardError` like `Board.open`.
        """
        engine = open_engine(url, create=True)
        try:
            upgrade(engine)
        except BoardError:
            engine.dispose()
            raise
        return cls(engine, now)

    def close(self) -> None:
        """Close the database connections."""
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
        max_stored_bytes: int | None = None,
        min_free_bytes: int = 0,
        daily_limit: int | None = None,
        team_size: int | None = None,
        deadline: datetime | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Store a submission and queue its job. Returns its id, once it is durable.

        `gpu` is the required GPU type; None allows any worker. With a `team_size`, it counts for
        the team that the user is in now. Raises `DeadlinePassed` from the `deadline` on,
        `EntryRefused` like `choose_entry`, `DailyLimitReached` when `daily_limit` files were
        submitted to the problem for this team or user in the last 24 hours, `TooManyInFlight` when
        the user has `max_in_flight` unfinished jobs, `QueueFull` when `max_queue` jobs are queued,
        `QuotaExceeded` when the user's stored sources would take more than `max_stored_bytes`,
        `DiskNearlyFull` when the disk is known to have less than `min_free_bytes`, and ValueError
        for a source larger than `MAX_SOURCE_BYTES`.

        A call that repeats the user's `idempotency_key` stores nothing, whatever the limits, and
        returns the id of the first; it raises `KeyReused` if it submits something else.
        """
        if len(submission.source) > MAX_SOURCE_BYTES:
            raise ValueError(f"a source of more than {MAX_SOURCE_BYTES:,} bytes is not stored")
        with transaction(self._engine, "submit") as connection:
            now = self._now()  # after waiting for the lock
            if idempotency_key is not None:
                same = {"problem": problem, "sha256": submission.sha256, "gpu": gpu}
                earlier = _repeated(connection, user, idempotency_key, same)
                if earlier is not None:
                    return earlier
            if deadline is not None and now >= deadline:
                raise DeadlinePassed(problem, deadline)
            team = None
            if team_size is not None:
                team = choose_entry(connection, user, problem, team_size)
            if daily_limit is not None:
                check_daily_limit(connection, user, problem, daily_limit, now, team)
            check_limits(connection, user, max_in_flight, max_queue)
            check_storage(
                connection, user, len(submission.source), max_stored_bytes, min_free_bytes
            )
            return job_updates.add_submission(
                connection,
                user,
                problem,
                problem_digest,
                submission,
                gpu,
                now,
                idempotency_key,
                team,
            )

    def submit_batch(
        self,
        user: str,
        problem: str,
        problem_digest: str,
        items: Sequence[BatchItem],
        gpu: str | None = None,
        *,
        max_in_flight: int = 2000,
        max_queue: int = 20_000,
        max_stored_bytes: int | None = None,
        min_free_bytes: int = 0,
        deadline: datetime | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Store many files for one problem, and queue a job for each, all or none. Returns the
        batch's id, once it is durable.

        The parameters and errors are those of `submit`; `max_in_flight` and `max_queue` count items
        of batches only. Raises ValueError for no items, and for two with one key.
        """
        if not items or len({item.key for item in items}) < len(items):
            raise ValueError("a batch has at least one item, and each has a key of its own")
        if any(len(item.submission.source) > MAX_SOURCE_BYTES for item in items):
            raise ValueError(f"a source of more than {MAX_SOURCE_BYTES:,} bytes is not stored")
        request_sha256 = _batch_digest(problem, items, gpu)
        with transaction(self._engine, "submit") as connection:
            now = self._now()  # after waiting for the lock
            if idempotency_key is not None:
                earlier = batch_with_key(connection, user, idempotency_key)
                if earlier is not None and earlier["request_sha256"] != request_sha256:
                    raise KeyReused(f"batch {earlier['id']}")
                if earlier is not None:
                    return int(earlier["id"])
            if deadline is not None and now >= deadline:
                raise DeadlinePassed(problem, deadline)
            check_batch_limits(connection, user, len(items), max_in_flight, max_queue)
            source_bytes = sum(len(item.submission.source) for item in items)
            check_storage(connection, user, source_bytes, max_stored_bytes, min_free_bytes)
            return batch_updates.add_batch(
                connection,
                user,
                problem,
                problem_digest,
                items,
                gpu,
                now,
                idempotency_key,
                request_sha256,
            )

    def batch(self, batch_id: int) -> Batch | None:
        """A batch, and how far it is; None if there is none with this id."""
        with connect(self._engine) as connection:
            return read_batch(connection, batch_id)

    def batches(self, user: str, limit: int, before: int | None = None) -> list[Batch]:
        """The newest batches of a user, newest first; only lower ids than `before`, for paging."""
        with connect(self._engine) as connection:
            return batches_of(connection, user, limit, before)

    def knows_key(self, user: str, idempotency_key: str | None, *, batch: bool = False) -> bool:
        """Whether a submission, or a batch, of the user has this idempotency key."""
        if idempotency_key is None:
            return False
        table = batches if batch else submissions
        same = (table.c.user == user) & (table.c.idempotency_key == idempotency_key)
        with connect(self._engine) as connection:
            return connection.scalar(select(table.c.id).where(same)) is not None

    def batch_results(self, batch_id: int, after: int, limit: int) -> list[BatchResult]:
        """The next `limit` results of a batch in the order in which items ended, with places above
        `after`. An item whose job is held has an error, and another place if it ends later."""
        with connect(self._engine) as connection:
            return results_after(connection, batch_id, after, limit)

    def cancel_batch(self, batch_id: int, by: str) -> bool:
        """Cancel the unfinished items of a batch; the results of the others stay. False if it has
        none."""
        with transaction(self._engine) as connection:
            return batch_updates.cancel_batch(connection, batch_id, by, self._now())

    def remove_old_batches(self, before: datetime, *, limit: int) -> int:
        """Remove the reports and sources of the `limit` oldest batches that ended before a time.
        Returns the number of batches."""
        with connect(self._engine) as connection:
            if not old_batches(connection, before, limit):
                return 0
        # Another batch may store an equal source, or a released job open one again, until here.
        with transaction(self._engine, "admin") as connection:
            acquire_lock(connection, "submit")
            found = old_batches(connection, before, limit)
            batch_updates.remove_old(connection, found, self._now())
        return len(found)

    def claim(
        self,
        worker: str,
        *,
        lease_s: float,
        problems: Problems | None = None,
        gpu: str | None = None,
        languages: Collection[str] | None = None,
        within_slots: bool = False,
    ) -> Lease | None:
        """Lease the next job of these `problems` and `languages` (None for all), if there is one.

        Users' own submissions go before those of rejudges, in the order of `queue_order`, and both
        before the items of batches, for which users take turns too. A mapping of `problems`
        name → digest limits them to these versions. A job that requires a GPU type goes only to a
        worker whose `gpu`, its full name, matches. With `within_slots`, the worker holds no more
        jobs at a time than it has announced slots, or one if it has announced none. A
        worker that is drained gets none.
        """
        now = self._now()
        token = secrets.token_hex(16)
        until = now + timedelta(seconds=lease_s)
        with transaction(self._engine) as connection:
            if within_slots and not _has_free_slot(connection, worker, now):
                return None
            if is_drained(connection, worker, gpu):
                return None
            job_id = next_job(connection, now, problems, gpu, languages)
            leased = job_updates.lease_job(connection, job_id, worker, token, until, now)
            if leased is not None:
                job_updates.note_turn(connection, leased, now)
                return _lease(connection, leased, token, until)
            for batch_id in batches_in_turn(connection, problems, gpu):
                job_id = next_job(connection, now, problems, gpu, languages, batch_id)
                leased = job_updates.lease_job(connection, job_id, worker, token, until, now)
                if leased is not None:
                    batch_updates.note_claim(connection, batch_id, now)
                    return _lease(connection, leased, token, until)
        return None

    def begin(self, key: LeaseKey) -> bool:
        """Mark the job as running. False if the lease is lost."""
        return self._update(key, (State.LEASED,), {jobs.c.state: State.RUNNING})

    def heartbeat(self, key: LeaseKey, lease_s: float, progress: Progress | None = None) -> bool:
        """Extend the lease to `lease_s` seconds from now, and report the grading's progress.

        False if the lease is lost, in which case the worker should stop grading. An expired lease
        that no sweep has taken yet is renewed.
        """
        values: job_updates.Values = {
            jobs.c.lease_until: self._now() + timedelta(seconds=lease_s),
        }
        if progress is not None:
            values[jobs.c.progress] = PROGRESS.dump_json(progress).decode()
        return self._update(key, LEASED_STATES, values)

    def finish(self, key: LeaseKey, report: Report) -> int | None:
        """Record the result and end the job, in one transaction. Returns the result's id.

        A result above the roofline is held: it does not count until an admin releases it. The
        result of a batch's item is recorded with the batch and not on the board; its place there is
        returned. None if the lease is lost; nothing is written then. Raises ValueError for a report
        without a verdict on the submission (use `fail`), or one for another submission or problem
        version.
        """
        done: job_updates.Values = {
            jobs.c.state: State.DONE,
            jobs.c.lease_token: None,
            jobs.c.lease_until: None,
            jobs.c.progress: None,
        }
        now = self._now()
        with transaction(self._engine) as connection:
            # First, so that of two concurrent calls the second waits here and then finds its token
            # gone. An exception below rolls this back too.
            if not job_updates.update_lease(connection, key, (State.RUNNING,), done, now):
                return None
            submission = _submission(connection, key.submission_id)
            graded = {
                "sha256": report.submission_sha256,
                "language": report.language,
                "problem": report.problem,
                "problem_digest": report.problem_digest,
            }
            if any(submission[column] != value for column, value in graded.items()):
                raise ValueError(f"the report is not one of submission {key.submission_id}")
            if (batch_id := submission["batch_id"]) is not None:
                text = report.model_copy(update={"ranked": False}).model_dump_json()
                return batch_updates.end_item(
                    connection, batch_id, key.submission_id, now, report=text
                )
            result_id = insert_result(connection, report, submission["user"], submission["content"])
            job_updates.set_result(connection, key.submission_id, result_id)
            void = {"result_id": result_id, "at": now}
            if submission["rejudge_id"] is not None:
                # The result counts once an admin applies the rejudge.
                connection.execute(insert(voids).values(**void, why="preview", by="rejudge"))
            if is_above_roofline(report):
                connection.execute(insert(voids).values(**void, why="held", by=ROOFLINE))
        return result_id

    def fail(self, key: LeaseKey, reason: str) -> bool:
        """Report a judge error: the job is queued again after a delay, or held at the third.

        False if the lease is lost.
        """
        now = self._now()
        retry_at = [
            (jobs.c.failures == failures, literal(now + timedelta(seconds=delay_s), UtcDateTime))
            for failures, delay_s in enumerate(RETRY_DELAYS_S)
        ]
        values = job_updates.failed(jobs.c.failures, reason) | {jobs.c.not_before: case(*retry_at)}
        with transaction(self._engine) as connection:
            has_failed = job_updates.update_lease(connection, key, LEASED_STATES, values, now)
            batch_updates.settle(connection, now)
        return has_failed

    def give_back(self, key: LeaseKey) -> bool:
        """Queue the job again at its old place, with no failure counted, as the worker stops.

        False if the lease is lost.
        """
        return self._update(key, LEASED_STATES, job_updates.REQUEUED)

    def sweep(self) -> int:
        """Queue jobs with expired leases again, or hold them at their third. Returns their number.

        Each expired lease counts as a death of the job's worker.
        """
        with transaction(self._engine) as connection:
            count = job_updates.requeue_expired(connection, self._now())
            batch_updates.settle(connection, self._now())
        return count

    def hold_outdated(self, versions: Mapping[str, str]) -> int:
        """Hold queued jobs for other versions of these problems (name → digest).

        No worker grades an old version. Returns the number of jobs.
        """
        with transaction(self._engine) as connection:
            count = job_updates.hold_outdated(connection, versions, self._now())
            batch_updates.settle(connection, self._now())
        return count

    def announce(self, worker: Worker) -> None:
        """Record that a worker is connected, and its slots. One that is drained stays so, however
        long it was silent."""
        values = asdict(worker) | {"last_seen": self._now()}
        known = update(workers).where(workers.c.name == worker.name).values(values)
        is_old = workers.c.last_seen < self._now() - WORKER_EXPIRY
        expired = is_old & workers.c.drained_at.is_(None)
        with transaction(self._engine) as connection:
            if connection.execute(known).rowcount == 0:
                connection.execute(delete(workers).where(expired))
                # Another process may insert the same worker at this moment.
                with suppress(IntegrityError), connection.begin_nested():
                    connection.execute(insert(workers).values(values))

    def cancel(self, submission_id: int, by: str) -> bool:
        """Cancel an unfinished job; the result of a running one will be dropped.

        False if there is no such job, or it is done or cancelled.
        """
        with transaction(self._engine) as connection:
            is_cancelled = job_updates.cancel_job(connection, submission_id, by, self._now())
            batch_updates.settle(connection, self._now())
        return is_cancelled

    def release(self, submission_id: int) -> bool:
        """Queue a held job again, with its failures and deaths reset. False if it is not held."""
        with transaction(self._engine) as connection:
            is_released = job_updates.release_held(connection, submission_id, self._now())
            if is_released:
                batch_updates.reopen(connection, submission_id)
        return is_released

    def remove_old_sources(self, before: datetime, *, after: int, limit: int) -> SourceBatch:
        """Remove sources from before a time that `retention` does not keep, in one batch.

        The batch looks at the next `limit` submissions with ids above `after`.
        """
        with connect(self._engine) as connection:
            seen = sources_before(connection, before, after, limit)
            expired = expired_sources(connection, seen) if seen else ()
        if expired:
            # No ban, rejudge or equal source may come in between from here on.
            with transaction(self._engine, "admin") as connection:
                acquire_lock(connection, "submit")
                expired = expired_sources(connection, [row["id"] for row in expired])
                job_updates.remove_sources(connection, expired, self._now())
        return SourceBatch(len(expired), seen[-1] if seen else None)

    def storage(self) -> Storage:
        """What the database and the sources of its submissions take."""
        with connect(self._engine) as connection:
            return Storage(database_bytes(connection), stored_bytes(connection))

    def free_bytes(self) -> int | None:
        """How much the database can still grow; None if that is not known."""
        with connect(self._engine) as connection:
            return free_bytes(connection)

    def seconds_since_disk_full(self) -> float:
        """How long ago the disk was full at a write of this process; infinity for never."""
        return seconds_since_disk_full(self._engine)

    def _update(self, key: LeaseKey, states: tuple[State, ...], values: job_updates.Values) -> bool:
        now = self._now()
        with transaction(self._engine) as connection:
            return job_updates.update_lease(connection, key, states, values, now)


def _repeated(
    connection: Connection, user: str, key: str, same: Mapping[str, str | None]
) -> int | None:
    """The user's submission with this idempotency key; None if there is none. Raises `KeyReused`
    if it differs in a column of `same`."""
    query = select(submissions).where(
        submissions.c.user == user, submissions.c.idempotency_key == key
    )
    row = connection.execute(query).mappings().first()
    if row is None:
        return None
    if any(row[column] != value for column, value in same.items()):
        raise KeyReused(f"submission {row['id']}")
    return int(row["id"])


def _batch_digest(problem: str, items: Sequence[BatchItem], gpu: str | None) -> str:
    """The hash of what a client hands in as a batch."""
    content = hashlib.sha256(repr((problem, gpu, len(items))).encode())
    for item in items:
        fields = (item.key, item.submission.language, item.submission.sha256, item.benchmarks)
        content.update(repr(fields).encode())
    return content.hexdigest()


def _has_free_slot(connection: Connection, worker: str, now: datetime) -> bool:
    """Whether a worker holds fewer jobs than it has slots. Locks what it has announced, so that of
    two claims at once the second counts the first one's job."""
    # A worker with several kinds of slots announces each kind under its name and the kind's.
    kinds = workers.c.name.startswith(f"{worker} ", autoescape=True)
    announced = select(workers.c.slots).where(
        or_(workers.c.name == worker, kinds), workers.c.last_seen >= now - SLOTS_KNOWN
    )
    slots = list(connection.scalars(announced.with_for_update()))
    held = select(func.count()).where(
        jobs.c.leased_by == one_line(worker, 200), jobs.c.state.in_(LEASED_STATES)
    )
    return (connection.scalar(held) or 0) < (sum(slots) if slots else 1)


def _submission(connection: Connection, submission_id: int) -> RowMapping:
    """A submission with its source as `content`; `batch_id` and `benchmarks` are null if it is in
    no batch."""
    query = (
        select(submissions, blobs.c.content, batch_items.c.batch_id, batch_items.c.benchmarks)
        .join(blobs, blobs.c.sha256 == submissions.c.sha256)
        .join(batch_items, batch_items.c.submission_id == submissions.c.id, isouter=True)
    )
    return connection.execute(query.where(submissions.c.id == submission_id)).mappings().one()


def _lease(connection: Connection, submission_id: int, token: str, until: datetime) -> Lease:
    row = _submission(connection, submission_id)
    return Lease(
        submission_id=submission_id,
        token=token,
        until=until,
        problem=row["problem"],
        problem_digest=row["problem_digest"],
        name=row["name"],
        language=row["language"],
        source=bytes(row["content"]),
        gpu=row["gpu"],
        benchmarks=row["benchmarks"] is not False,
    )
