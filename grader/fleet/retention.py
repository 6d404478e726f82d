"""Which sources may be removed: old ones that neither rank nor wait for anyone's decision.

Digests, verdicts and reports are never removed. These keep their sources, however old they are:

- each user's best ranked result on each GPU, for each version of a problem;
- unfinished submissions, held results, and those that their authors have withdrawn and may want
  back;
- submissions of a rejudge that is not decided yet, and their copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, RowMapping, or_, select

from grader.board.store import best_results, not_void
from grader.db.tables import jobs, rejudges, results, submissions, voids
from grader.fleet.job import State


def sources_before(
    connection: Connection, before: datetime, after: int, limit: int
) -> Sequence[int]:
    """The next `limit` submissions from before a time that have their sources still, by id.

    after: only higher ids.
    """
    query = (
        select(submissions.c.id)
        .where(
            submissions.c.id > after,
            submissions.c.created_at < before,
            submissions.c.source_removed_at.is_(None),
        )
        .order_by(submissions.c.id)
        .limit(limit)
    )
    return list(connection.scalars(query))


def expired_sources(connection: Connection, among: Sequence[int]) -> Sequence[RowMapping]:
    """Those of the submissions that keep their sources for nothing: id, sha256 and result_id."""
    owned = submissions.alias("owned")
    owners = select(owned.c.user).where(owned.c.id.in_(among))
    best = best_results(
        results.c.user,
        results.c.user.in_(owners),
        not_void(except_for="banned"),  # these count again once their user is unbanned
    )
    query = (
        select(submissions.c.id, submissions.c.sha256, jobs.c.result_id)
        .join(jobs, jobs.c.submission_id == submissions.c.id)
        .where(
            submissions.c.id.in_(among),
            jobs.c.state.in_((State.DONE, State.CANCELLED)),
            or_(
                jobs.c.result_id.is_(None),
                jobs.c.result_id.not_in(best) & ~_may_count_again(),
            ),
            ~_awaits_rejudge(),
        )
    )
    return connection.execute(query).mappings().all()


def _may_count_again() -> ColumnElement[bool]:
    undecided = voids.c.why.in_(("held", "withdrawn"))
    mine = voids.c.result_id == jobs.c.result_id
    return select(voids).where(mine, undecided).correlate(jobs).exists()


def _awaits_rejudge() -> ColumnElement[bool]:
    """Whether the submission is in a rejudge that is not decided yet, as original or as copy."""
    copy = submissions.alias("copy")
    is_in = or_(copy.c.id == submissions.c.id, copy.c.original_id == submissions.c.id)
    undecided = (
        select(copy)
        .join(rejudges, rejudges.c.id == copy.c.rejudge_id)
        .where(is_in, rejudges.c.state == "preview")
    )
    return undecided.correlate(submissions).exists()
