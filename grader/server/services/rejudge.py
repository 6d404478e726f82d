"""Rejudges: doubtful results are graded again, and an admin decides which results count.

A rejudge copies each original submission. The fleet grades the copies after users' own submissions.
Their results are void (``preview``) until an admin applies the rejudge; then the old results are
void (``rejudged``). Old results are kept forever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from grader.board.owners import owner_of_result
from grader.board.store import best_results, not_void
from grader.db.engine import connect, transaction
from grader.db.tables import UtcDateTime, jobs, rejudges, results, submissions, voids
from grader.fleet import job_updates
from grader.fleet.job import IN_FLIGHT_STATES, UNFINISHED_STATES, State
from grader.fleet.job_queries import is_valid_id
from grader.report import Verdict, one_line
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.audit import record_action
from grader.server.services.rejudge_diff import LASTING, RejudgeChange, rejudge_changes

RejudgeSelection = Literal["best", "accepted"]
"""Each user's best ranked result on each GPU, or every accepted result."""


@dataclass(frozen=True)
class GradedBy:
    """Selects every result of a worker, whatever its verdict."""

    worker: str
    """A worker's full name, such as ``farm/host``, or a user's, for all workers of its tokens."""

    def condition(self) -> ColumnElement[bool]:
        """The SQL condition on `jobs`."""
        machines = jobs.c.leased_by.startswith(f"{self.worker}/", autoescape=True)
        return or_(jobs.c.leased_by == self.worker, machines)


Selection = RejudgeSelection | GradedBy | Sequence[int]


@dataclass(frozen=True)
class Rejudge:
    """A rejudge and its progress."""

    id: int
    problem: str
    created_at: datetime
    by: str
    reason: str
    state: Literal["preview", "applied", "dropped"]
    decided_at: datetime | None
    total: int
    """The number of submissions that it grades."""
    done: int
    unfinished: int
    """The number still to be graded, without held ones. The rest are held or cancelled."""


@dataclass(frozen=True)
class RejudgePreview:
    """A rejudge with the change of each submission."""

    rejudge: Rejudge
    changes: list[RejudgeChange]


class RejudgeService:
    """The rejudges of one database. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def start(
        self,
        problem: str,
        digest: str,
        selection: Selection,
        *,
        reason: str,
        by: str,
    ) -> int:
        """Queue submissions of a problem for regrading. Returns the rejudge's id.

        digest: the problem's current version, which grades them.
        selection: chooses among the results of this version, or lists submissions of any version.
            Only results that count or are held are graded again.

        Results whose sources were removed are left out; `without_source` has their number. Raises
        `Invalid` if a listed submission has no result that counts, or no source, or if there is
        none to grade.
        """
        with transaction(self._engine, "admin") as connection:
            originals = _originals(connection, problem, digest, selection)
            added = connection.execute(
                insert(rejudges).values(
                    problem=problem,
                    created_at=self._now(),
                    by=by,
                    reason=one_line(reason),
                    state="preview",
                )
            )
            assert added.inserted_primary_key is not None
            rejudge_id = int(added.inserted_primary_key[0])
            job_updates.queue_rejudge(connection, rejudge_id, digest, originals, self._now())
            detail = f"rejudge {rejudge_id}, {len(originals)} submissions: {reason}"
            record_action(connection, self._now(), by, "rejudge start", problem, detail)
        return rejudge_id

    def without_source(self, problem: str, digest: str, selection: Selection) -> int:
        """How many results `start` leaves out, since their sources were removed."""
        query = _selected(problem, digest, selection)
        removed = query.where(submissions.c.source_removed_at.is_not(None)).subquery()
        with connect(self._engine) as connection:
            return int(connection.scalar(select(func.count()).select_from(removed)) or 0)

    def rejudge(self, number: int) -> Rejudge | None:
        """A rejudge by its id; None if there is none."""
        with connect(self._engine) as connection:
            return _rejudge(connection, number)

    def rejudges(self) -> list[Rejudge]:
        """Every rejudge, newest first."""
        with connect(self._engine) as connection:
            rows = connection.execute(_REJUDGES.order_by(rejudges.c.id.desc())).mappings()
            return [Rejudge(**row) for row in rows]

    def preview(self, number: int) -> RejudgePreview | None:
        """The changes that a rejudge makes or made; None if there is no such rejudge."""
        with connect(self._engine) as connection:
            rejudge = _rejudge(connection, number)
            if rejudge is None:
                return None
            return RejudgePreview(rejudge, rejudge_changes(connection, number))

    def apply(self, number: int, by: str) -> int:
        """Make the new results count instead of the old ones. Returns how many were exchanged.

        Held copies are cancelled and keep the old result, as do submissions that another rejudge
        has replaced. Raises `NotFound`, and `Conflict` if copies are still to be graded, if none
        has a result, or if the rejudge is already decided.
        """
        now = self._now()
        with transaction(self._engine, "admin") as connection:
            self._decide(connection, number, "applied")
            job_updates.cancel_all_of_rejudge(connection, number, (State.HELD,), by, now)
            left = connection.scalar(
                select(func.count())
                .select_from(jobs.join(submissions, submissions.c.id == jobs.c.submission_id))
                .where(submissions.c.rejudge_id == number, jobs.c.state.in_(IN_FLIGHT_STATES))
            )
            if left:
                raise Conflict(f"rejudge {number} still has {left} to grade; wait, or drop it")
            exchanged = _exchange(connection, number, by, now)
            if not exchanged:
                raise Conflict("none of its submissions has a result to exchange; drop it")
            record_action(
                connection, now, by, "rejudge apply", number, f"{exchanged} results exchanged"
            )
        return exchanged

    def drop(self, number: int, by: str) -> None:
        """Keep the old results, and cancel unfinished copies. Raises like `apply`."""
        now = self._now()
        with transaction(self._engine, "admin") as connection:
            self._decide(connection, number, "dropped")
            cancelled = job_updates.cancel_all_of_rejudge(
                connection, number, UNFINISHED_STATES, by, now
            )
            record_action(
                connection, now, by, "rejudge drop", number, f"{cancelled} jobs cancelled"
            )

    def _decide(self, connection: Connection, number: int, state: str) -> None:
        rejudge = _rejudge(connection, number)
        if rejudge is None:
            raise NotFound(f"there is no rejudge {number}")
        if rejudge.state != "preview":
            raise Conflict(f"rejudge {number} is {rejudge.state} already")
        decided = update(rejudges).where(rejudges.c.id == number)
        connection.execute(decided.values(state=state, decided_at=self._now()))


def _count_in(*states: State) -> Select[int]:
    joined = submissions.join(jobs, jobs.c.submission_id == submissions.c.id)
    mine = submissions.c.rejudge_id == rejudges.c.id
    count = select(func.count()).select_from(joined).where(mine)
    return (count.where(jobs.c.state.in_(states)) if states else count).correlate(rejudges)


_REJUDGES = select(
    rejudges,
    _count_in().scalar_subquery().label("total"),
    _count_in(State.DONE).scalar_subquery().label("done"),
    _count_in(*IN_FLIGHT_STATES).scalar_subquery().label("unfinished"),
)


def _rejudge(connection: Connection, number: int) -> Rejudge | None:
    if not is_valid_id(number):
        return None
    row = connection.execute(_REJUDGES.where(rejudges.c.id == number)).mappings().first()
    return None if row is None else Rejudge(**row)


def _selected(problem: str, digest: str, selection: Selection) -> Select[tuple[object, ...]]:
    """The submissions to regrade, as rows of their copies, with `source_removed_at`.

    Each copy requests the GPU of its old result, so that the two results are comparable. On a
    cluster that knows only GPU types, a result from another GPU is not exchanged.
    """
    copied = ("user", "team", "problem", "name", "language", "sha256")
    query = (
        select(
            *(submissions.c[name] for name in copied),
            func.coalesce(results.c.gpu, submissions.c.gpu).label("gpu"),
            submissions.c.id.label("original_id"),
            submissions.c.source_removed_at,
        )
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .join(results, results.c.id == jobs.c.result_id)
        .where(submissions.c.problem == problem, not_void(except_for="held"))
        .order_by(submissions.c.id)
    )
    current = results.c.problem_digest == digest
    if selection == "best":
        return query.where(results.c.id.in_(best_results(owner_of_result(), current, not_void())))
    if selection == "accepted":
        return query.where(current, results.c.verdict == Verdict.ACCEPTED.value)
    if isinstance(selection, GradedBy):
        return query.where(current, selection.condition())
    return query.where(submissions.c.id.in_([n for n in set(selection) if is_valid_id(n)]))


def _originals(
    connection: Connection, problem: str, digest: str, selection: Selection
) -> list[dict[str, Any]]:
    """The rows to copy. Raises `Invalid` for listed submissions that cannot be graded again, and
    if there are none."""
    found: list[dict[str, Any]] = []
    removed: list[int] = []
    for row in connection.execute(_selected(problem, digest, selection)).mappings():
        if row["source_removed_at"] is None:
            found.append({name: row[name] for name in row if name != "source_removed_at"})
        else:
            removed.append(row["original_id"])
    if not isinstance(selection, str | GradedBy):
        known = {row["original_id"] for row in found} | set(removed)
        if missing := sorted(set(selection) - known):
            numbers = ", ".join(map(str, missing[:10]))
            raise Invalid(f"{problem} has no such submission whose result counts: {numbers}")
        if removed:
            numbers = ", ".join(map(str, removed[:10]))
            raise Invalid(f"sources were removed, so these cannot be graded again: {numbers}")
    if found:
        return found
    if removed:
        raise Invalid(
            f"the sources of all {len(removed)} such results of {problem} were removed, so they "
            "cannot be graded again"
        )
    if isinstance(selection, GradedBy):
        raise Invalid(
            f"no result of {problem} that counts is of a worker {one_line(selection.worker, 100)}; "
            "a submission's page names its worker"
        )
    raise Invalid(f"{problem} has no such results; name submissions, or take all accepted ones")


def _exchange(connection: Connection, number: int, by: str, now: datetime) -> int:
    """Void the old results and make the new ones count. Returns their number.

    Skips results that another rejudge has replaced, and those from another GPU than before, which
    belong to another leaderboard. Copies of banned, deleted or withdrawn results become void for
    that reason.
    """
    old_job, new_job = jobs.alias("old_job"), jobs.alias("new_job")
    old_result, new_result = results.alias("old_result"), results.alias("new_result")
    replaced = select(voids.c.result_id).where(voids.c.why == "rejudged")
    pairs = (
        select(old_job.c.result_id.label("old"), new_job.c.result_id.label("new"))
        .select_from(submissions)
        .join(new_job, new_job.c.submission_id == submissions.c.id)
        .join(old_job, old_job.c.submission_id == submissions.c.original_id)
        .join(new_result, new_result.c.id == new_job.c.result_id)
        .join(old_result, old_result.c.id == old_job.c.result_id)
        .where(
            submissions.c.rejudge_id == number,
            new_result.c.gpu.is_not_distinct_from(old_result.c.gpu),
            old_job.c.result_id.not_in(replaced),
        )
        .subquery()
    )
    columns = ["result_id", "why", "at", "by"]
    known = voids.alias("known")
    is_known = (known.c.result_id == pairs.c.new) & (known.c.why == voids.c.why)
    lasting = (
        select(pairs.c.new, voids.c.why, voids.c.at, voids.c.by)
        .join(voids, voids.c.result_id == pairs.c.old)
        .where(voids.c.why.in_(LASTING), ~select(known).where(is_known).exists())
    )
    connection.execute(insert(voids).from_select(columns, lasting))
    previews = voids.c.result_id.in_(select(pairs.c.new)) & (voids.c.why == "preview")
    connection.execute(delete(voids).where(previews))
    # Last, since a ``rejudged`` row marks a pair as exchanged.
    old = select(pairs.c.old, literal("rejudged"), literal(now, UtcDateTime), literal(by))
    added = insert(voids).from_select(columns, old).returning(voids.c.result_id)
    return len(connection.execute(added).all())
