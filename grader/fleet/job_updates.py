"""Every write to the tables of jobs, submissions and sources.

Each function runs within the caller's transaction, so that a ban or a rejudge changes jobs and its
own tables together. A change of a job's state is one conditional UPDATE, whose row count tells
whether it happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    RowMapping,
    ScalarSelect,
    Update,
    case,
    exists,
    false,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from grader.board.owners import owner
from grader.board.store import clear_sources
from grader.db.tables import UtcDateTime, blobs, jobs, queue_turns, submissions
from grader.fleet.job import LEASED_STATES, UNFINISHED_STATES, LeaseKey, State
from grader.fleet.job_queries import is_valid_id
from grader.report import one_line
from grader.submission import Submission

MAX_FAILURES = 3
"""A job is held at its third judge error, and at its third expired lease."""

Values = dict[Column[Any], Any]

_ENDED_LEASE: Values = {
    jobs.c.lease_token: None,
    jobs.c.lease_until: None,
    jobs.c.progress: None,
}
_NO_LEASE: Values = _ENDED_LEASE | {jobs.c.leased_by: None}

REQUEUED: Values = {jobs.c.state: State.QUEUED} | _NO_LEASE
"""Back to its old place in the queue, with no failure counted."""

_RELEASED: Values = {
    jobs.c.state: State.QUEUED,
    jobs.c.failures: 0,
    jobs.c.deaths: 0,
    jobs.c.held_reason: None,
}


def add_submission(
    connection: Connection,
    user: str,
    problem: str,
    problem_digest: str,
    submission: Submission,
    gpu: str | None,
    now: datetime,
    idempotency_key: str | None = None,
    team: str | None = None,
) -> int:
    """Store a submission and queue its job. Returns the submission's id."""
    _store_sources(connection, [submission])
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
            idempotency_key=idempotency_key,
            stored_bytes=len(submission.source),
            team=team,
        )
    )
    assert added.inserted_primary_key is not None
    submission_id = int(added.inserted_primary_key[0])
    connection.execute(
        insert(jobs).values(
            submission_id=submission_id, state=State.QUEUED, failures=0, deaths=0, updated_at=now
        )
    )
    return submission_id


def add_batch_submissions(
    connection: Connection,
    batch_id: int,
    user: str,
    problem: str,
    problem_digest: str,
    sources: Sequence[Submission],
    gpu: str | None,
    now: datetime,
) -> list[int]:
    """Store the sources of a batch, and queue a job for each. Returns their ids, in order.

    With few statements: others who submit wait meanwhile.
    """
    _store_sources(connection, sources)
    common = {
        "user": user,
        "problem": problem,
        "problem_digest": problem_digest,
        "gpu": gpu,
        "created_at": now,
    }
    rows = [
        common
        | {
            "name": one_line(one.name, 200),
            "language": one.language,
            "sha256": one.sha256,
            "stored_bytes": len(one.source),
        }
        for one in sources
    ]
    added = insert(submissions).returning(submissions.c.id, sort_by_parameter_order=True)
    numbers = [int(number) for number in connection.scalars(added, rows)]
    queued = {
        "state": State.QUEUED,
        "failures": 0,
        "deaths": 0,
        "updated_at": now,
        "batch_id": batch_id,
    }
    connection.execute(insert(jobs), [queued | {"submission_id": number} for number in numbers])
    return numbers


def queue_rejudge(
    connection: Connection,
    rejudge_id: int,
    problem_digest: str,
    originals: Iterable[Mapping[str, Any]],
    now: datetime,
) -> None:
    """Add the submissions of a rejudge, and queue their jobs.

    `originals` are the rows to copy: user, team, problem, name, language, sha256, gpu and
    original_id.
    """
    common = {"problem_digest": problem_digest, "rejudge_id": rejudge_id, "created_at": now}
    connection.execute(insert(submissions), [dict(row) | common for row in originals])
    queued = select(
        submissions.c.id,
        literal(State.QUEUED.value),
        literal(0),
        literal(0),
        literal(now, UtcDateTime),
    ).where(submissions.c.rejudge_id == rejudge_id)
    columns = ["submission_id", "state", "failures", "deaths", "updated_at"]
    connection.execute(insert(jobs).from_select(columns, queued))


def lease_job(
    connection: Connection,
    job_id: ScalarSelect[int],
    worker: str,
    token: str,
    until: datetime,
    now: datetime,
) -> int | None:
    """Lease the job that `next_job` selects to a worker. Returns its submission's id, or None."""
    leased = connection.scalar(
        update(jobs)
        .where(jobs.c.submission_id == job_id, jobs.c.state == State.QUEUED)
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
    return None if leased is None else int(leased)


def note_turn(connection: Connection, submission_id: int, now: datetime) -> None:
    """Note that a worker has taken a submission of a user or a team: it is others' turn. One of a
    rejudge is not the user's own."""
    own = select(owner).where(submissions.c.id == submission_id, submissions.c.rejudge_id.is_(None))
    name = connection.scalar(own)
    if name is None:
        return
    turn = update(queue_turns).where(queue_turns.c.user == name).values(claimed_at=now)
    if connection.execute(turn).rowcount == 0:
        # Another worker may take the second of their submissions at this moment.
        with suppress(IntegrityError), connection.begin_nested():
            connection.execute(insert(queue_turns).values(user=name, claimed_at=now))


def update_lease(
    connection: Connection, key: LeaseKey, states: tuple[State, ...], values: Values, now: datetime
) -> bool:
    """Change the job of a lease. False if the lease or the job's state is no longer as expected, or
    another worker holds it."""
    statement = _job_in(key.submission_id, states).where(jobs.c.lease_token == key.token)
    if key.holder is not None:
        statement = statement.where(jobs.c.leased_by.startswith(key.holder, autoescape=True))
    return _count(connection, statement, values, now) == 1


def set_result(connection: Connection, submission_id: int, result_id: int) -> None:
    """Link a finished job to its result on the board."""
    job = jobs.c.submission_id == submission_id
    connection.execute(update(jobs).where(job).values(result_id=result_id))


def cancel_job(connection: Connection, submission_id: int, by: str, now: datetime) -> bool:
    """Cancel an unfinished job. False if there is none."""
    if not is_valid_id(submission_id):
        return False
    statement = _job_in(submission_id, UNFINISHED_STATES)
    return _count(connection, statement, _cancelled(by), now) == 1


def cancel_all_of_user(connection: Connection, user: str, by: str, now: datetime) -> int:
    """Cancel every unfinished job of a user. Returns their number."""
    return _cancel_where(connection, submissions.c.user == user, UNFINISHED_STATES, by, now)


def cancel_all_of_rejudge(
    connection: Connection, rejudge_id: int, states: tuple[State, ...], by: str, now: datetime
) -> int:
    """Cancel the jobs of a rejudge that are in one of these states. Returns their number."""
    return _cancel_where(connection, submissions.c.rejudge_id == rejudge_id, states, by, now)


def cancel_all_of_batch(
    connection: Connection, batch_id: int, states: tuple[State, ...], by: str, now: datetime
) -> int:
    """Cancel the jobs of a batch that are in one of these states. Returns their number."""
    statement = update(jobs).where(jobs.c.batch_id == batch_id, jobs.c.state.in_(states))
    return _count(connection, statement, _cancelled(by), now)


def release_held(connection: Connection, submission_id: int, now: datetime) -> bool:
    """Queue a held job again, with its failures and deaths reset. False if it is not held."""
    if not is_valid_id(submission_id):
        return False
    return _count(connection, _job_in(submission_id, (State.HELD,)), _RELEASED, now) == 1


def requeue_from_workers(connection: Connection, name_prefix: str, now: datetime) -> int:
    """Queue again the jobs leased by workers whose names begin so. Returns their number."""
    leased = jobs.c.leased_by.startswith(name_prefix, autoescape=True)
    statement = update(jobs).where(leased, jobs.c.state.in_(LEASED_STATES))
    return _count(connection, statement, REQUEUED, now)


def requeue_expired(connection: Connection, now: datetime) -> int:
    """Queue jobs with expired leases again, or hold them at their third. Returns their number."""
    leased = jobs.alias("leased")
    expired = (
        select(leased.c.submission_id)
        .where(leased.c.state.in_(LEASED_STATES), leased.c.lease_until < now)
        # Leave a job alone that another sweep, a heartbeat or a finish has locked.
        .with_for_update(skip_locked=True)
    )
    statement = update(jobs).where(
        jobs.c.submission_id.in_(expired), jobs.c.state.in_(LEASED_STATES)
    )
    reason = f"{MAX_FAILURES} workers died while grading it"
    return _count(connection, statement, failed(jobs.c.deaths, reason), now)


def hold_outdated(connection: Connection, versions: Mapping[str, str], now: datetime) -> int:
    """Hold queued jobs for other versions of these problems (name → digest).

    Returns their number.
    """
    outdated = exists().where(
        submissions.c.id == jobs.c.submission_id,  # or every submission would be read
        or_(
            false(),
            *(
                (submissions.c.problem == name) & (submissions.c.problem_digest != digest)
                for name, digest in versions.items()
            ),
        ),
    )
    values: Values = {
        jobs.c.state: State.HELD,
        jobs.c.held_reason: "the problem has changed since this was submitted",
        jobs.c.not_before: None,
    }
    statement = update(jobs).where(jobs.c.state == State.QUEUED, outdated)
    return _count(connection, statement, values, now)


def remove_sources(connection: Connection, expired: Sequence[RowMapping], now: datetime) -> None:
    """Remove the sources of submissions, and of their results.

    `expired` has the rows of `retention.expired_sources`: id, sha256 and result_id. A source that
    another submission keeps stays for that one.
    """
    ids = [row["id"] for row in expired]
    connection.execute(
        update(submissions)
        .where(submissions.c.id.in_(ids))
        .values(source_removed_at=now, stored_bytes=0)
    )
    clear_sources(connection, [row["result_id"] for row in expired if row["result_id"] is not None])
    keeps = submissions.c.source_removed_at.is_(None)
    kept = select(submissions).where(submissions.c.sha256 == blobs.c.sha256, keeps)
    hashes = {row["sha256"] for row in expired}
    connection.execute(
        update(blobs)
        .where(blobs.c.sha256.in_(hashes), ~kept.correlate(blobs).exists())
        .values(content=b"")
    )


def failed(counter: Column[Any], reason: str) -> Values:
    """The values for one more failure or death: queued again, or held at the last one allowed."""
    last = counter + 1 >= MAX_FAILURES
    return {
        counter: counter + 1,
        jobs.c.state: case((last, State.HELD), else_=State.QUEUED),
        jobs.c.held_reason: case((last, one_line(reason))),
        **_NO_LEASE,
    }


def _cancelled(by: str) -> Values:
    # The worker stays: what was cancelled before one had it does not count as submitted in a day.
    return {
        jobs.c.state: State.CANCELLED,
        jobs.c.cancelled_by: by,
        jobs.c.not_before: None,
        jobs.c.held_reason: None,
        **_ENDED_LEASE,
    }


def _cancel_where(
    connection: Connection,
    where: ColumnElement[bool],
    states: tuple[State, ...],
    by: str,
    now: datetime,
) -> int:
    chosen = select(submissions.c.id).where(where)
    statement = update(jobs).where(jobs.c.submission_id.in_(chosen), jobs.c.state.in_(states))
    return _count(connection, statement, _cancelled(by), now)


def _job_in(submission_id: int, states: tuple[State, ...]) -> Update:
    return update(jobs).where(jobs.c.submission_id == submission_id, jobs.c.state.in_(states))


def _count(connection: Connection, statement: Update, values: Values, now: datetime) -> int:
    """Execute an UPDATE. Returns the number of jobs it changed."""
    return connection.execute(statement.values(values | {jobs.c.updated_at: now})).rowcount


def _store_sources(connection: Connection, sources: Sequence[Submission]) -> None:
    """Store sources under their hashes, once for all equal ones, and again if they were removed."""
    by_hash = {one.sha256: one.source for one in sources}
    kept = func.length(blobs.c.content) == blobs.c.size_bytes
    hashes = list(by_hash)
    stored: dict[str, bool] = {}
    for start in range(0, len(hashes), 500):  # databases take no more parameters at once
        query = select(blobs.c.sha256, kept).where(blobs.c.sha256.in_(hashes[start : start + 500]))
        stored |= {sha256: bool(is_kept) for sha256, is_kept in connection.execute(query)}
    new = [
        {"sha256": sha256, "size_bytes": len(source), "content": source}
        for sha256, source in by_hash.items()
        if sha256 not in stored
    ]
    if new:
        connection.execute(insert(blobs), new)
    for sha256 in (sha256 for sha256, is_kept in stored.items() if not is_kept):
        mine = blobs.c.sha256 == sha256
        connection.execute(update(blobs).where(mine).values(content=by_hash[sha256]))
