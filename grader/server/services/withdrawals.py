"""Withdrawal: competitors take their own results off a board, and back, until its deadline."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Engine, delete, insert, select

from grader.db.engine import transaction
from grader.db.tables import boards, jobs, submissions, voids
from grader.fleet.job import DeadlinePassed
from grader.server.services import Conflict

WITHDRAWN = "withdrawn"
"""The reason in `voids`."""


class Withdrawals:
    """Withdrawn results of one database. Methods raise `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def withdraw(self, submission_id: int, user: str) -> None:
        """Make the result of a user's submission not count; their next best does. Does nothing if
        it is withdrawn already.

        Raises `DeadlinePassed`, and `Conflict` if the submission has no result, if a rejudge has
        replaced it, or if there is no such submission of the user.
        """
        self._set(submission_id, user, is_withdrawn=True)

    def restore(self, submission_id: int, user: str) -> None:
        """Make a withdrawn result count again, unless it is void for another reason too. Does
        nothing if it is not withdrawn. Raises like `withdraw`."""
        self._set(submission_id, user, is_withdrawn=False)

    def _set(self, submission_id: int, user: str, *, is_withdrawn: bool) -> None:
        query = (
            select(jobs.c.state, jobs.c.result_id, submissions.c.problem, boards.c.deadline)
            .join(submissions, submissions.c.id == jobs.c.submission_id)
            .join(boards, boards.c.problem == submissions.c.problem, isouter=True)
            .where(
                jobs.c.submission_id == submission_id,
                jobs.c.batch_id.is_(None),
                submissions.c.user == user,
            )
        )
        with transaction(self._engine, "admin") as connection:  # so that no rejudge replaces it now
            now = self._now()
            row = connection.execute(query).one_or_none()
            if row is None:
                raise Conflict(f"{user} has no submission {submission_id}")
            if row.result_id is None:
                raise Conflict(f"submission {submission_id} is {row.state} and has no result")
            if row.deadline is not None and now >= row.deadline:
                raise DeadlinePassed(row.problem, row.deadline)
            mine = voids.c.result_id == row.result_id
            reasons = set(connection.scalars(select(voids.c.why).where(mine)))
            if "rejudged" in reasons:
                raise Conflict(
                    f"submission {submission_id} was graded again; withdraw the one that replaced "
                    "it, which its page names"
                )
            if is_withdrawn and WITHDRAWN not in reasons:
                values = {"result_id": row.result_id, "why": WITHDRAWN, "at": now, "by": user}
                connection.execute(insert(voids).values(values))
            if not is_withdrawn:
                connection.execute(delete(voids).where(mine, voids.c.why == WITHDRAWN))
