"""Every write to the tables of batches.

An item of a batch is a submission with a job, which `job_updates` writes. Here is what the batch
knows of it besides: its key, its place in the order in which items ended, and its report. Functions
run within the caller's transaction and lock jobs before batches, so that no two wait for each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Update,
    exists,
    insert,
    or_,
    select,
    update,
)

from grader.db.tables import batch_items, batches, jobs, submissions
from grader.fleet import job_updates
from grader.fleet.job import IN_FLIGHT_STATES, UNFINISHED_STATES, BatchItem, State
from grader.fleet.job_queries import is_valid_id
from grader.report import one_line


def add_batch(
    connection: Connection,
    user: str,
    problem: str,
    problem_digest: str,
    items: Sequence[BatchItem],
    gpu: str | None,
    now: datetime,
    idempotency_key: str | None,
    request_sha256: str,
) -> int:
    """Store a batch, and queue a job for each of its items. Returns the batch's id."""
    added = connection.execute(
        insert(batches).values(
            user=user,
            problem=problem,
            problem_digest=problem_digest,
            gpu=gpu,
            created_at=now,
            idempotency_key=idempotency_key,
            request_sha256=request_sha256,
            items=len(items),
            ended=0,
        )
    )
    assert added.inserted_primary_key is not None
    batch_id = int(added.inserted_primary_key[0])
    sources = [item.submission for item in items]
    numbers = job_updates.add_batch_submissions(
        connection, batch_id, user, problem, problem_digest, sources, gpu, now
    )
    connection.execute(
        insert(batch_items),
        [
            {
                "submission_id": number,
                "batch_id": batch_id,
                "key": item.key,
                "benchmarks": item.benchmarks,
            }
            for number, item in zip(numbers, items, strict=True)
        ],
    )
    return batch_id


def note_claim(connection: Connection, batch_id: int, now: datetime) -> None:
    """Note that a worker has taken an item: it is other users' turn."""
    connection.execute(update(batches).where(batches.c.id == batch_id).values(claimed_at=now))


def end_item(
    connection: Connection,
    batch_id: int,
    submission_id: int,
    now: datetime,
    *,
    report: str | None = None,
    error: str | None = None,
) -> int:
    """Give an item the next place, with its report or error, and close the batch if it was the
    last. Returns the place."""
    # The row stays locked until the commit, so that places become visible in their order: who has
    # read up to one misses none before it.
    raised = update(batches).where(batches.c.id == batch_id).values(ended=batches.c.ended + 1)
    place = int(connection.scalar(raised.returning(batches.c.ended)) or 0)
    connection.execute(
        update(batch_items)
        .where(batch_items.c.submission_id == submission_id)
        .values(place=place, report=report, error=None if error is None else one_line(error))
    )
    connection.execute(_close(now).where(batches.c.id == batch_id))
    return place


def settle(connection: Connection, now: datetime) -> None:
    """End the items whose jobs are held, and close the batches of which none is in flight.

    After any change of jobs but `end_item`. An item whose job is held has an error, so that a
    batch does not wait for an admin. If the job is released, the item ends again, with
    another place.
    """
    to_settle = select(batches.c.id).where(
        batches.c.closed_at.is_(None), or_(~_in_flight(), _newly_held().exists())
    )
    if not list(connection.scalars(to_settle)):
        return
    locked = connection.scalars(to_settle.order_by(batches.c.id).with_for_update())
    for batch_id in list(locked):
        held = _newly_held(batch_id).add_columns(jobs.c.held_reason)
        for submission_id, reason in connection.execute(held.order_by(jobs.c.submission_id)).all():
            end_item(connection, batch_id, submission_id, now, error=reason or "it was held")
    connection.execute(_close(now))


def reopen(connection: Connection, submission_id: int) -> None:
    """Open the batch of an item whose job was queued again; nothing for another submission."""
    if not is_valid_id(submission_id):
        return
    mine = select(jobs.c.batch_id).where(jobs.c.submission_id == submission_id).scalar_subquery()
    connection.execute(update(batches).where(batches.c.id == mine).values(closed_at=None))
    connection.execute(
        update(batch_items)
        .where(batch_items.c.submission_id == submission_id)
        .values(place=None, error=None)
    )


def cancel_batch(connection: Connection, batch_id: int, by: str, now: datetime) -> bool:
    """Cancel the unfinished items of a batch. False if there is none, or the batch is closed."""
    is_open = select(batches.c.id).where(batches.c.id == batch_id, batches.c.closed_at.is_(None))
    if connection.scalar(is_open) is None:
        return False
    if not job_updates.cancel_all_of_batch(connection, batch_id, UNFINISHED_STATES, by, now):
        return False
    mine = update(batches).where(batches.c.id == batch_id)
    connection.execute(mine.values(cancelled_by=by))
    connection.execute(_close(now).where(batches.c.id == batch_id))
    return True


def remove_old(connection: Connection, batch_ids: Sequence[int], now: datetime) -> None:
    """Remove the reports and sources of closed batches."""
    items = batch_items.c.batch_id.in_(batch_ids)
    connection.execute(update(batch_items).where(items).values(report=None))
    sources = (
        select(submissions.c.id, submissions.c.sha256, jobs.c.result_id)
        .join(batch_items, batch_items.c.submission_id == submissions.c.id)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .where(items, submissions.c.source_removed_at.is_(None), jobs.c.state != State.HELD)
    )
    rows = connection.execute(sources).mappings().all()
    for start in range(0, len(rows), 500):  # of which databases take no more parameters
        job_updates.remove_sources(connection, rows[start : start + 500], now)
    removed = update(batches).where(batches.c.id.in_(batch_ids)).values(removed_at=now)
    connection.execute(removed)


def _close(now: datetime) -> Update:
    return update(batches).where(batches.c.closed_at.is_(None), ~_in_flight()).values(closed_at=now)


def _in_flight() -> ColumnElement[bool]:
    """Whether a job of the batch waits or is graded."""
    return exists().where(jobs.c.batch_id == batches.c.id, jobs.c.state.in_(IN_FLIGHT_STATES))


def _newly_held(batch_id: int | None = None) -> Select[int]:
    """The held items of a batch, or of the batch of the enclosing query, without a place."""
    return (
        select(jobs.c.submission_id)
        .join(batch_items, batch_items.c.submission_id == jobs.c.submission_id)
        .where(
            jobs.c.batch_id == (batches.c.id if batch_id is None else batch_id),
            jobs.c.state == State.HELD,
            batch_items.c.place.is_(None),
        )
    )
