"""Queries on batches: what their users read, and whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import Connection, RowMapping, func, select

from grader.board.store import MAX_ID
from grader.db.tables import batch_items, batches, jobs, submissions
from grader.fleet.job import (
    IN_FLIGHT_STATES,
    Batch,
    BatchResult,
    QueueFull,
    State,
    TooManyInFlight,
    gpu_matches,
)
from grader.fleet.job_queries import RETRY_AFTER_S, Problems

_NEVER = datetime.min.replace(tzinfo=UTC)


def read_batch(connection: Connection, batch_id: int) -> Batch | None:
    """A batch; None if there is none with this id."""
    if not 0 < batch_id <= MAX_ID:
        return None
    row = connection.execute(select(batches).where(batches.c.id == batch_id)).mappings().first()
    return None if row is None else _batches(connection, [row])[0]


def batches_of(connection: Connection, user: str, limit: int, before: int | None) -> list[Batch]:
    """The newest batches of a user, newest first. `before` limits it to lower ids, for paging."""
    query = select(batches).where(batches.c.user == user)
    if before is not None:
        query = query.where(batches.c.id < max(0, min(before, MAX_ID)))
    rows = connection.execute(query.order_by(batches.c.id.desc()).limit(limit)).mappings()
    return _batches(connection, list(rows))


def results_after(
    connection: Connection, batch_id: int, after: int, limit: int
) -> list[BatchResult]:
    """The next results of a batch with places above `after`, in the order in which items ended."""
    query = (
        select(
            batch_items.c.place,
            batch_items.c.key,
            batch_items.c.report,
            batch_items.c.error,
            jobs.c.leased_by,
        )
        .join(jobs, jobs.c.submission_id == batch_items.c.submission_id)
        .where(batch_items.c.batch_id == batch_id, batch_items.c.place > after)
        .order_by(batch_items.c.place)
        .limit(limit)
    )
    return [BatchResult(*row) for row in connection.execute(query)]


def batches_in_turn(
    connection: Connection, problems: Problems | None, gpu: str | None
) -> list[int]:
    """The open batches of which a worker may take items, in the order in which it should try them.

    Users take turns, item by item: the one whose last item was taken longest ago goes first, with
    the oldest batch. A batch of thousands does not keep another user's waiting. The parameters are
    those of `Ledger.claim`.
    """
    rows = connection.execute(select(batches).where(batches.c.closed_at.is_(None))).mappings().all()
    last: dict[str, datetime] = {}
    for row in rows:
        last[row["user"]] = max(last.get(row["user"], _NEVER), row["claimed_at"] or _NEVER)
    able = [row for row in rows if gpu_matches(gpu, row["gpu"]) and _is_among(row, problems)]
    return [row["id"] for row in sorted(able, key=lambda row: (last[row["user"]], row["id"]))]


def batch_with_key(connection: Connection, user: str, key: str) -> RowMapping | None:
    """The id and the request's hash of the user's batch with this idempotency key."""
    query = select(batches.c.id, batches.c.request_sha256).where(
        batches.c.user == user, batches.c.idempotency_key == key
    )
    return connection.execute(query).mappings().first()


def check_batch_limits(
    connection: Connection, user: str, count: int, max_in_flight: int, max_queue: int
) -> None:
    """Raise `TooManyInFlight` or `QueueFull` if a batch of `count` items cannot be accepted.

    The caller's transaction must exclude other submits.
    """
    of_batches = select(func.count()).select_from(jobs).where(jobs.c.batch_id.is_not(None))
    mine = of_batches.join(submissions, submissions.c.id == jobs.c.submission_id).where(
        jobs.c.state.in_(IN_FLIGHT_STATES), submissions.c.user == user
    )
    in_flight = connection.scalar(mine) or 0
    if in_flight + count > max_in_flight:
        raise TooManyInFlight(
            f"{user} has {in_flight:,} items of batches unfinished, and {count:,} more would "
            f"exceed the limit of {max_in_flight:,}; wait for them, or cancel a batch",
            RETRY_AFTER_S,
        )
    waiting = connection.scalar(of_batches.where(jobs.c.state == State.QUEUED)) or 0
    if waiting + count > max_queue:
        raise QueueFull(
            f"{waiting:,} items of batches wait already, and {count:,} more would exceed the limit "
            f"of {max_queue:,}; try again later",
            RETRY_AFTER_S,
        )


def old_batches(connection: Connection, before: datetime, limit: int) -> list[int]:
    """The oldest batches that ended before a time and still have their reports."""
    query = (
        select(batches.c.id)
        .where(batches.c.closed_at < before, batches.c.removed_at.is_(None))
        .order_by(batches.c.id)
        .limit(limit)
    )
    return list(connection.scalars(query))


def _batches(connection: Connection, rows: list[RowMapping]) -> list[Batch]:
    """The batches of these rows, with the states of their items."""
    counted = (
        select(jobs.c.batch_id, jobs.c.state, func.count())
        .where(jobs.c.batch_id.in_([row["id"] for row in rows]))
        .group_by(jobs.c.batch_id, jobs.c.state)
    )
    states: dict[int, dict[State, int]] = {}
    for batch_id, state, count in connection.execute(counted) if rows else ():
        states.setdefault(batch_id, {})[State(state)] = int(count)
    return [
        Batch(
            id=row["id"],
            user=row["user"],
            problem=row["problem"],
            problem_digest=row["problem_digest"],
            gpu=row["gpu"],
            created_at=row["created_at"],
            items=row["items"],
            closed_at=row["closed_at"],
            cancelled_by=row["cancelled_by"],
            removed_at=row["removed_at"],
            states=states.get(row["id"], {}),
        )
        for row in rows
    ]


def _is_among(row: RowMapping, problems: Problems | None) -> bool:
    if problems is None:
        return True
    if isinstance(problems, Mapping):
        return bool(problems.get(row["problem"]) == row["problem_digest"])
    return row["problem"] in problems
