"""SQL conditions for results as they were at a moment, which frozen standings are made of.

A ban, a deletion, a hold and a release act at once, also on frozen standings. A rejudge that is
applied later does not: its new results are later ones, and the old ones still count.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import ColumnElement, and_, select

from grader.board.store import not_void
from grader.db.tables import jobs, rejudges, results, submissions, voids


def counted_before(moment: datetime) -> ColumnElement[bool]:
    """That a result was there before a moment, and was then no unfinished rejudge's."""
    text = moment.astimezone(UTC).isoformat(timespec="seconds")
    ended = select(jobs).where(jobs.c.result_id == results.c.id, jobs.c.updated_at >= moment)
    decided = (
        select(rejudges)
        .join(submissions, submissions.c.rejudge_id == rejudges.c.id)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .where(jobs.c.result_id == results.c.id, rejudges.c.decided_at >= moment)
    )
    later = (ended.correlate(results).exists(), decided.correlate(results).exists())
    return and_(results.c.created_at < text, *(~one for one in later))


def is_left_out(*why: str, at: datetime | None = None) -> ColumnElement[bool]:
    """That a result does not count for one of these reasons. A rejudge that was applied at the
    moment `at` or later does not count as one."""
    found = select(voids).where(voids.c.result_id == results.c.id, voids.c.why.in_(why))
    if at is not None:
        found = found.where(~_is_replaced_since(at))
    return found.correlate(results).exists()


def counts_at(moment: datetime | None) -> ColumnElement[bool]:
    """That a result counts, in standings that are frozen since a moment; None for those of now."""
    if moment is None:
        return not_void()
    void = select(voids).where(voids.c.result_id == results.c.id, ~_is_replaced_since(moment))
    return and_(counted_before(moment), ~void.correlate(results).exists())


def _is_replaced_since(moment: datetime) -> ColumnElement[bool]:
    return and_(voids.c.why == "rejudged", voids.c.at >= moment)
