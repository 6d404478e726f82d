"""Submissions as lists and pages need them: each with its job's state and what of its result fits
into one line, without the reports and the sources, which are large.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Engine, RowMapping, Select, bindparam, func, select

from grader.board.store import MAX_ID, not_void
from grader.db.engine import connect
from grader.db.tables import blobs, jobs, results, submissions, voids
from grader.fleet import State
from grader.report import Verdict
from grader.submission import Language


@dataclass(frozen=True)
class Line:
    """One submission in one line."""

    id: int
    user: str
    problem: str
    problem_digest: str
    name: str
    """File name, escaped."""
    language: Language
    created_at: datetime
    state: State
    rejudge_id: int | None
    result_id: int | None
    verdict: Verdict | None
    gpu: str | None
    """The GPU it ran on."""
    ranked: bool
    score_us: float | None
    ci_low_us: float | None
    ci_high_us: float | None
    void: frozenset[str]
    """Why its result does not count; empty where it does."""


class Ranked(NamedTuple):
    """A result that ranks. A tuple, since thousands are read at a time."""

    id: int
    gpu: str
    user: str
    score_us: float
    ci_low_us: float
    ci_high_us: float
    language: str
    created_at: str
    """ISO 8601, UTC."""
    submission_id: int | None
    """None for a result that was not handed in to a server."""


class Shelf:
    """Reads one database. Every method raises `BoardError` when it cannot be used."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def line(self, submission_id: int) -> Line | None:
        """One submission, a rejudge's too; None when there is none of this number."""
        if not 0 < submission_id <= MAX_ID:
            return None
        return next(iter(self._lines(_LINE, {"number": submission_id})), None)

    def lines(
        self,
        *,
        limit: int,
        before: int | None = None,
        user: str | None = None,
        problems: Collection[str] | None = None,
        state: State | None = None,
        deleted: bool = False,
    ) -> list[Line]:
        """The newest submissions that fit, newest first; those of rejudges are left out.

        `before` is the number to go on below. Deleted ones come only with `deleted`.
        """
        fits: list[ColumnElement[bool]] = [submissions.c.rejudge_id.is_(None)]
        if before is not None:
            fits.append(submissions.c.id < max(0, min(before, MAX_ID)))
        if user is not None:
            fits.append(submissions.c.user == user)
        if problems is not None:
            fits.append(submissions.c.problem.in_(problems))
        if state is not None:
            fits.append(jobs.c.state == state)
        if not deleted:
            fits.append(~_void("deleted"))
        return self._lines(_LINES.where(*fits).order_by(submissions.c.id.desc()).limit(limit))

    def replacement(self, submission_id: int) -> int | None:
        """The submission by which a rejudge has replaced this one; None when none has."""
        query = (
            select(submissions.c.id)
            .join(jobs, jobs.c.submission_id == submissions.c.id)
            .where(
                submissions.c.original_id == submission_id,
                jobs.c.result_id.is_not(None),
                ~_void("preview"),
                ~_void("deleted"),
            )
        )
        with connect(self._engine) as connection:
            return connection.scalar(query.limit(1))

    def source(self, submission_id: int) -> bytes | None:
        """What was handed in; None when there is no submission of this number."""
        query = (
            select(blobs.c.content)
            .join(submissions, submissions.c.sha256 == blobs.c.sha256)
            .where(submissions.c.id == submission_id)
        )
        with connect(self._engine) as connection:
            content = connection.scalar(query)
        return None if content is None else bytes(content)

    def reports(self, result_ids: Collection[int]) -> Iterator[tuple[int, str]]:
        """Numbers on the board, and the reports in JSON."""
        query = select(results.c.id, results.c.report)
        wanted = list(result_ids)
        for start in range(0, len(wanted), 500):
            with connect(self._engine) as connection:
                some = query.where(results.c.id.in_(wanted[start : start + 500]))
                found = connection.execute(some).all()
            yield from ((row[0], row[1]) for row in found)

    def version(self) -> tuple[int, int, int]:
        """Something that is another after every change of any leaderboard."""
        with connect(self._engine) as connection:
            row = connection.execute(_VERSION).one()
        return int(row[0]), int(row[1]), int(row[2])

    def states(self) -> dict[State, int]:
        """How many jobs are in each state."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        with connect(self._engine) as connection:
            found = {State(state): int(count) for state, count in connection.execute(query)}
        return {state: found.get(state, 0) for state in State}

    def verdicts(self) -> dict[Verdict, int]:
        """How many results there are of each verdict."""
        query = select(results.c.verdict, func.count()).group_by(results.c.verdict)
        with connect(self._engine) as connection:
            return {Verdict(verdict): int(count) for verdict, count in connection.execute(query)}

    def oldest_waiting(self) -> datetime | None:
        """When the submission that waits longest was handed in; None when none waits."""
        query = (
            select(submissions.c.created_at)
            .join(jobs, jobs.c.submission_id == submissions.c.id)
            .where(jobs.c.state == State.QUEUED)
            .order_by(submissions.c.id)
            .limit(1)
        )
        with connect(self._engine) as connection:
            return connection.scalar(query)

    def ranked(self, problem_digest: str) -> list[Ranked]:
        """Every ranked result that counts, on every GPU, fastest first."""
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
            .where(results.c.problem_digest == problem_digest, results.c.ranked, not_void())
            .order_by(results.c.score_us, results.c.id)
        )
        with connect(self._engine) as connection:
            return [Ranked(*row) for row in connection.execute(query)]

    def _lines(
        self, query: Select[tuple[object, ...]], values: Mapping[str, int] | None = None
    ) -> list[Line]:
        with connect(self._engine) as connection:
            rows = list(connection.execute(query, values).mappings())
            done = [row["result_id"] for row in rows if row["result_id"] is not None]
            void: dict[int, set[str]] = {}
            for result_id, reason in connection.execute(_WHY, {"done": done}) if done else ():
                void.setdefault(result_id, set()).add(reason)
        return [_line(row, frozenset(void.get(row["result_id"], ()))) for row in rows]


_LINES: Select[tuple[object, ...]] = (
    select(
        submissions.c.id,
        submissions.c.user,
        submissions.c.problem,
        submissions.c.problem_digest,
        submissions.c.name,
        submissions.c.language,
        submissions.c.created_at,
        submissions.c.rejudge_id,
        jobs.c.state,
        jobs.c.result_id,
        results.c.verdict,
        results.c.gpu,
        results.c.ranked,
        results.c.score_us,
        results.c.ci_low_us,
        results.c.ci_high_us,
    )
    .join(jobs, jobs.c.submission_id == submissions.c.id)
    .join(results, results.c.id == jobs.c.result_id, isouter=True)
)


# What pages ask for all the time is put together once.
_LINE = _LINES.where(submissions.c.id == bindparam("number"))
_WHY = select(voids.c.result_id, voids.c.why).where(
    voids.c.result_id.in_(bindparam("done", expanding=True))
)
_OFF = select(func.count(), func.coalesce(func.sum(voids.c.result_id), 0)).subquery()
_VERSION = select(
    select(func.coalesce(func.max(results.c.id), 0)).scalar_subquery(),
    *_OFF.c,
)


def _void(why: str) -> ColumnElement[bool]:
    return select(voids).where(voids.c.result_id == jobs.c.result_id, voids.c.why == why).exists()


def _line(row: RowMapping, void: frozenset[str]) -> Line:
    return Line(
        **{
            **row,
            "state": State(row["state"]),
            "verdict": Verdict(row["verdict"]) if row["verdict"] else None,
            "ranked": bool(row["ranked"]),
            "void": void,
        }
    )
