"""Grading anew: results in doubt are graded once more, a person looks, and then decides.

A rejudge makes a submission of its own of each original. The fleet grades these behind users' live
ones, and their results are void (``preview``) until the rejudge is applied; then the old ones are
(``rejudged``). Old results are kept for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import (
    Connection,
    Engine,
    RowMapping,
    Select,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)

from grader.board.store import not_void
from grader.db.engine import connect, transaction
from grader.db.tables import UtcDateTime, jobs, rejudges, results, submissions, voids
from grader.fleet import job_updates
from grader.fleet.job import IN_FLIGHT_STATES, UNFINISHED_STATES, State
from grader.fleet.job_queries import is_valid_id
from grader.report import Verdict, one_line
from grader.server.services.audit import note
from grader.server.services.errors import Conflict, Invalid, NotThere
from grader.server.services.rejudge_diff import GONE, Change, changes

Which = Literal["best", "accepted"]
"""Each user's best ranked result on each GPU, or everything that was accepted."""


@dataclass(frozen=True)
class Rejudge:
    """One grading anew, and how far it is."""

    id: int
    problem: str
    created_at: datetime
    by: str
    reason: str
    state: Literal["preview", "applied", "dropped"]
    decided_at: datetime | None
    total: int
    """How many submissions it grades."""
    done: int
    unfinished: int
    """How many are still to be graded, held ones not counted. The rest was held or cancelled."""


@dataclass(frozen=True)
class Preview:
    """A rejudge, submission by submission."""

    rejudge: Rejudge
    changes: list[Change]


class Rejudges:
    """The rejudges of one database. Every method raises `BoardError` when it cannot be used."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def start(
        self,
        problem: str,
        digest: str,
        which: Which | Sequence[int],
        *,
        reason: str,
        by: str,
    ) -> int:
        """Queue submissions of a problem to be graded anew; the rejudge's number.

        `digest` is the problem's current version, by which they are graded. `which` chooses among
        the results of this version, or names submissions whose result not_void, of any version.
        Raises `Invalid` when one of these is none, or there is nothing to grade.
        """
        with transaction(self._engine, "admin") as connection:
            originals = _originals(connection, problem, digest, which)
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
            number = int(added.inserted_primary_key[0])
            job_updates.queue_rejudge(connection, number, digest, originals, self._now())
            told = f"rejudge {number}, {len(originals)} submissions: {reason}"
            note(connection, self._now(), by, "rejudge start", problem, told)
        return number

    def rejudge(self, number: int) -> Rejudge | None:
        """A rejudge by its number; None when there is none."""
        with connect(self._engine) as connection:
            return _rejudge(connection, number)

    def rejudges(self) -> list[Rejudge]:
        """Every rejudge, newest first."""
        with connect(self._engine) as connection:
            rows = connection.execute(_REJUDGES.order_by(rejudges.c.id.desc())).mappings()
            return [Rejudge(**row) for row in rows]

    def preview(self, number: int) -> Preview | None:
        """What a rejudge changes, or changed; None when there is none of this number."""
        with connect(self._engine) as connection:
            rejudge = _rejudge(connection, number)
            if rejudge is None:
                return None
            return Preview(rejudge, changes(connection, number))

    def apply(self, number: int, by: str) -> int:
        """Let the new results count in place of the old ones; how many were exchanged.

        What is held is cancelled, and keeps its old result; so does what another rejudge has
        replaced already. Raises `NotThere`, and `Conflict` while something is still to be graded,
        when nothing was, or when the rejudge is decided already.
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
            note(connection, now, by, "rejudge apply", number, f"{exchanged} results exchanged")
        return exchanged

    def drop(self, number: int, by: str) -> None:
        """Leave everything as it was, and cancel what is not graded yet. Raises like `apply`."""
        now = self._now()
        with transaction(self._engine, "admin") as connection:
            self._decide(connection, number, "dropped")
            cancelled = job_updates.cancel_all_of_rejudge(
                connection, number, UNFINISHED_STATES, by, now
            )
            note(connection, now, by, "rejudge drop", number, f"{cancelled} jobs cancelled")

    def _decide(self, connection: Connection, number: int, state: str) -> None:
        rejudge = _rejudge(connection, number)
        if rejudge is None:
            raise NotThere(f"there is no rejudge {number}")
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


def _originals(
    connection: Connection, problem: str, digest: str, which: Which | Sequence[int]
) -> list[RowMapping]:
    """The submissions to grade anew, as the rows of new ones.

    Each is to run on the GPU that its old result is from, so that the two compare; where a cluster
    tells only the type, what ran on another is not exchanged.
    """
    copied = ("user", "problem", "name", "language", "sha256")
    query = (
        select(
            *(submissions.c[name] for name in copied),
            func.coalesce(results.c.gpu, submissions.c.gpu).label("gpu"),
            submissions.c.id.label("original_id"),
        )
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .join(results, results.c.id == jobs.c.result_id)
        .where(submissions.c.problem == problem, not_void())
        .order_by(submissions.c.id)
    )
    current = results.c.problem_digest == digest
    if which == "best":
        query = query.where(results.c.id.in_(_best(digest)))
    elif which == "accepted":
        query = query.where(current, results.c.verdict == Verdict.ACCEPTED.value)
    else:
        named = sorted(set(which))
        query = query.where(submissions.c.id.in_([n for n in named if is_valid_id(n)]))
    found = list(connection.execute(query).mappings())
    if not isinstance(which, str):
        missing = sorted(set(which) - {row["original_id"] for row in found})
        if missing:
            numbers = ", ".join(map(str, missing[:10]))
            raise Invalid(
                f"of {problem}, there is no such submission whose result counts: {numbers}"
            )
    if not found:
        raise Invalid(f"{problem} has no such results; name submissions, or take all accepted ones")
    return found


def _best(digest: str) -> Select[int]:
    """Each user's best ranked result on each GPU."""
    place = func.row_number().over(
        partition_by=(results.c.user, results.c.gpu), order_by=(results.c.score_us, results.c.id)
    )
    ranked = select(results.c.id, place.label("place")).where(
        results.c.problem_digest == digest, results.c.ranked, not_void()
    )
    best = ranked.subquery()
    return select(best.c.id).where(best.c.place == 1)


def _exchange(connection: Connection, number: int, by: str, now: datetime) -> int:
    """Void old results and let the new ones count; how many. What another rejudge has replaced
    already is left alone, as is what was graded on another GPU than before, whose board is another;
    and what was banned or deleted meanwhile stays so."""
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
    gone = (
        select(pairs.c.new, voids.c.why, voids.c.at, voids.c.by)
        .join(voids, voids.c.result_id == pairs.c.old)
        .where(voids.c.why.in_(GONE), ~select(known).where(is_known).exists())
    )
    connection.execute(insert(voids).from_select(columns, gone))
    previews = voids.c.result_id.in_(select(pairs.c.new)) & (voids.c.why == "preview")
    connection.execute(delete(voids).where(previews))
    # Last, since it is what tells that a pair is exchanged.
    old = select(pairs.c.old, literal("rejudged"), literal(now, UtcDateTime), literal(by))
    added = insert(voids).from_select(columns, old).returning(voids.c.result_id)
    return len(connection.execute(added).all())
