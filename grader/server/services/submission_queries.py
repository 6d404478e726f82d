"""Queries for lists of submissions and results. They read neither reports nor sources, which are
large."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Engine, RowMapping, Select, bindparam, case, func, or_, select

from grader.board.owners import owner_name, teams_of_results
from grader.board.store import MAX_ID, not_void
from grader.board.versions import ProblemVersion, read_versions
from grader.db.engine import connect
from grader.db.tables import blobs, jobs, rejudges, results, submissions, voids
from grader.fleet import State
from grader.report import Verdict
from grader.server.services.freeze import counts_at
from grader.submission import Language


@dataclass(frozen=True)
class SubmissionSummary:
    """A submission with its job's state and the main columns of its result."""

    id: int
    user: str
    team: str | None
    """The team that it counts for; None if it counts for its user."""
    problem: str
    problem_digest: str
    name: str
    """File name, escaped."""
    language: Language
    created_at: datetime
    source_removed_at: datetime | None
    """When its source was removed; None if it is there."""
    state: State
    rejudge_id: int | None
    result_id: int | None
    worker: str | None
    """The worker that grades it, or that graded it."""
    verdict: Verdict | None
    gpu: str | None
    """The GPU that it ran on."""
    ranked: bool
    score_us: float | None
    ci_low_us: float | None
    ci_high_us: float | None
    void: frozenset[str]
    """Why its result does not count; empty if it does."""
    counted_at: datetime | None
    """When its result arrived, or the rejudge that made it was decided; None without a result."""

    @property
    def owner(self) -> str:
        """The name of the entry that it counts for: that of its team or its user."""
        return owner_name(self.user, self.team)


class RankedResult(NamedTuple):
    """A ranked result. A tuple for speed, since thousands are read at a time."""

    id: int
    gpu: str
    user: str
    """The user, or the team that it counts for."""
    is_team: bool
    score_us: float
    ci_low_us: float
    ci_high_us: float
    language: str
    created_at: str
    """ISO 8601, UTC."""
    submission_id: int | None
    """None for a result that was not submitted to a server."""


class Attempts(NamedTuple):
    """What a user's results for one version of a problem amount to."""

    user: str
    problem: str
    problem_digest: str
    accepted: bool
    """Whether one was accepted."""
    best_us: float | None
    """The best ranked score, on any GPU; None without one."""


class SubmissionQueries:
    """Queries on one database. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def summary(self, submission_id: int) -> SubmissionSummary | None:
        """One submission, also of a rejudge; None if there is none with this id."""
        if not 0 < submission_id <= MAX_ID:
            return None
        return next(iter(self._summaries(_SUMMARY, {"id": submission_id})), None)

    def summaries(
        self,
        *,
        limit: int,
        before: int | None = None,
        user: str | None = None,
        team: str | None = None,
        problems: Collection[str] | None = None,
        state: State | None = None,
        deleted: bool = False,
        reader: str | None = None,
    ) -> list[SubmissionSummary]:
        """The newest submissions that match all filters, newest first, without those of rejudges
        and items of batches.

        before: only lower ids, for paging.
        deleted: whether to include deleted submissions.
        reader: leaves out what this user may not see of others: cancelled submissions, and those
            of banned users. Empty for someone without a name, None for an admin.
        """
        filters: list[ColumnElement[bool]] = [
            submissions.c.rejudge_id.is_(None),
            jobs.c.batch_id.is_(None),
        ]
        if before is not None:
            filters.append(submissions.c.id < max(0, min(before, MAX_ID)))
        if user is not None:
            filters.append(submissions.c.user == user)
        if team is not None:
            filters.append(submissions.c.team == team)
        if problems is not None:
            filters.append(submissions.c.problem.in_(problems))
        if state is not None:
            filters.append(jobs.c.state == state)
        if not deleted:
            filters.append(~_is_void("deleted"))
        if reader is not None:
            private = or_(jobs.c.state == State.CANCELLED, _is_void("banned"))
            filters.append(or_(submissions.c.user == reader, ~private))
        return self._summaries(
            _SUMMARIES.where(*filters).order_by(submissions.c.id.desc()).limit(limit)
        )

    def replacement(self, submission_id: int) -> int | None:
        """The rejudge's copy that has replaced this submission; None if none has."""
        query = (
            select(submissions.c.id)
            .join(jobs, jobs.c.submission_id == submissions.c.id)
            .where(
                submissions.c.original_id == submission_id,
                jobs.c.result_id.is_not(None),
                ~_is_void("preview"),
                ~_is_void("deleted"),
            )
        )
        with connect(self._engine) as connection:
            return connection.scalar(query.limit(1))

    def source(self, submission_id: int) -> bytes | None:
        """The source of a submission; None if it was removed, or there is none with this id."""
        query = (
            select(blobs.c.content)
            .join(submissions, submissions.c.sha256 == blobs.c.sha256)
            .where(submissions.c.id == submission_id, submissions.c.source_removed_at.is_(None))
        )
        with connect(self._engine) as connection:
            content = connection.scalar(query)
        return None if content is None else bytes(content)

    def reports(self, result_ids: Collection[int]) -> Iterator[tuple[int, str]]:
        """Pairs of result id and report as JSON."""
        query = select(results.c.id, results.c.report)
        ids = list(result_ids)
        for start in range(0, len(ids), 500):
            with connect(self._engine) as connection:
                batch = query.where(results.c.id.in_(ids[start : start + 500]))
                rows = connection.execute(batch).all()
            yield from ((row[0], row[1]) for row in rows)

    def version(self) -> tuple[int, int, int, datetime | None]:
        """A value that differs after every change of any leaderboard. The first is the highest id
        of a result; the others change with the results that do not count."""
        with connect(self._engine) as connection:
            row = connection.execute(VERSION).one()
        return int(row[0]), int(row[1]), int(row[2]), row[3]

    def states(self) -> dict[State, int]:
        """The number of jobs in each state."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        with connect(self._engine) as connection:
            counts = {State(state): int(count) for state, count in connection.execute(query)}
        return {state: counts.get(state, 0) for state in State}

    def oldest_waiting(self) -> datetime | None:
        """When the oldest queued submission was submitted; None if none is queued. Batches may take
        hours, so their items do not count."""
        query = (
            select(submissions.c.created_at)
            .join(jobs, jobs.c.submission_id == submissions.c.id)
            .where(jobs.c.state == State.QUEUED, jobs.c.batch_id.is_(None))
            .order_by(submissions.c.id)
            .limit(1)
        )
        with connect(self._engine) as connection:
            return connection.scalar(query)

    def ranked(self, problem_digest: str, as_of: datetime | None = None) -> list[RankedResult]:
        """Every ranked result that counts, on all GPUs, fastest first.

        as_of: the moment since which the standings are frozen; None for those of now.
        """
        query = (
            select(
                results.c.id,
                results.c.gpu,
                results.c.user,
                results.c.score_us,
                results.c.ci_low_us,
                results.c.ci_high_us,
                results.c.language,
                results.c.created_at,
                jobs.c.submission_id,
            )
            .join(jobs, jobs.c.result_id == results.c.id, isouter=True)
            .where(results.c.problem_digest == problem_digest, results.c.ranked, counts_at(as_of))
            .order_by(results.c.score_us, results.c.id)
        )
        with connect(self._engine) as connection:
            rows = connection.execute(query).all()
            teams = teams_of_results(connection, problem_digest)
        return [
            RankedResult(number, gpu, owner_name(user, teams.get(number)), number in teams, *others)
            for number, gpu, user, *others in rows
        ]

    def versions(
        self, problem: str, current: str, as_of: datetime | None = None
    ) -> list[ProblemVersion]:
        """Every version of a problem by number; `current` is the digest of today's version.

        as_of: the moment since which the standings are frozen; None for those of now.
        """
        with connect(self._engine) as connection:
            return read_versions(connection, problem, current, counts_at(as_of))

    def attempts(self, after: int, until: int) -> list[Attempts]:
        """What the results that count amount to, of those with an id above `after`, up to `until`.
        By user and version of a problem."""
        is_accepted = case((results.c.verdict == str(Verdict.ACCEPTED), 1), else_=0)
        ranked_us = case((results.c.ranked, results.c.score_us))
        by = (results.c.user, results.c.problem, results.c.problem_digest)
        query = (
            select(*by, func.max(is_accepted), func.min(ranked_us))
            .where(results.c.id > after, results.c.id <= until, not_void())
            .group_by(*by)
        )
        with connect(self._engine) as connection:
            return [
                Attempts(user, problem, digest, bool(accepted), best_us)
                for user, problem, digest, accepted, best_us in connection.execute(query)
            ]

    def newest_ranked(self, after: int, until: int) -> dict[str, int]:
        """The highest id of a ranked result above `after`, up to `until`, by version of a problem
        that has one."""
        query = (
            select(results.c.problem_digest, func.max(results.c.id))
            .where(results.c.id > after, results.c.id <= until, results.c.ranked)
            .group_by(results.c.problem_digest)
        )
        with connect(self._engine) as connection:
            return {digest: int(newest) for digest, newest in connection.execute(query)}

    def _summaries(
        self, query: Select[tuple[object, ...]], values: Mapping[str, int] | None = None
    ) -> list[SubmissionSummary]:
        with connect(self._engine) as connection:
            rows = list(connection.execute(query, values).mappings())
            result_ids = [row["result_id"] for row in rows if row["result_id"] is not None]
            void: dict[int, set[str]] = {}
            for result_id, reason in (
                connection.execute(_VOID_REASONS, {"ids": result_ids}) if result_ids else ()
            ):
                void.setdefault(result_id, set()).add(reason)
        return [_summary(row, frozenset(void.get(row["result_id"], ()))) for row in rows]


_SUMMARIES: Select[tuple[object, ...]] = (
    select(
        submissions.c.id,
        submissions.c.user,
        submissions.c.team,
        submissions.c.problem,
        submissions.c.problem_digest,
        submissions.c.name,
        submissions.c.language,
        submissions.c.created_at,
        submissions.c.source_removed_at,
        submissions.c.rejudge_id,
        jobs.c.state,
        jobs.c.result_id,
        jobs.c.leased_by.label("worker"),
        results.c.verdict,
        results.c.gpu,
        results.c.ranked,
        results.c.score_us,
        results.c.ci_low_us,
        results.c.ci_high_us,
        results.c.created_at.label("graded_at"),
        jobs.c.updated_at.label("ended_at"),
        rejudges.c.decided_at,
    )
    .join(jobs, jobs.c.submission_id == submissions.c.id)
    .join(results, results.c.id == jobs.c.result_id, isouter=True)
    .join(rejudges, rejudges.c.id == submissions.c.rejudge_id, isouter=True)
)


# Queries of every page are built once.
_SUMMARY = _SUMMARIES.where(submissions.c.id == bindparam("id"))
_VOID_REASONS = select(voids.c.result_id, voids.c.why).where(
    voids.c.result_id.in_(bindparam("ids", expanding=True))
)
# With the last moment: if as many rows went as came, one of those that came is the newest.
_VOID_COUNTS = select(
    func.count(), func.coalesce(func.sum(voids.c.result_id), 0), func.max(voids.c.at)
).subquery()
VERSION = select(
    select(func.coalesce(func.max(results.c.id), 0)).scalar_subquery().label("last_result"),
    *_VOID_COUNTS.c,
)
"""One row that differs after every change of any leaderboard."""


def _is_void(why: str) -> ColumnElement[bool]:
    return select(voids).where(voids.c.result_id == jobs.c.result_id, voids.c.why == why).exists()


def _summary(row: RowMapping, void: frozenset[str]) -> SubmissionSummary:
    values = dict(row)
    graded_at, *others = (values.pop(name) for name in ("graded_at", "ended_at", "decided_at"))
    moments = [graded_at and datetime.fromisoformat(graded_at).astimezone(UTC), *others]
    return SubmissionSummary(
        **{
            **values,
            "counted_at": max(filter(None, moments)) if graded_at else None,
            "state": State(row["state"]),
            "verdict": Verdict(row["verdict"]) if row["verdict"] else None,
            "ranked": bool(row["ranked"]),
            "void": void,
        }
    )
