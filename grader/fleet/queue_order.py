"""The order of the queue, in one SQL query that claims and displayed positions share.

Users take turns: the next submission of each user goes before the second of any. Among users, the
one who has waited longest goes first, counted from the submission or from the moment when a worker
last took one of theirs, whichever is later. The submissions of rejudges follow, the oldest first;
batches are not in the queue.

So a user's first waiting submission is behind at most one of each other user, however many those
have. The end of a grading changes nothing in the order.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Subquery, case, func, select

from grader.db.tables import jobs, queue_turns, submissions
from grader.fleet.job import State


def positions(*among: ColumnElement[bool]) -> Subquery:
    """The columns `submission_id` and `position`, from 1, of what waits in the queue.

    among: conditions on jobs and submissions. What does not meet them uses up no turn of its user.
    """
    user, number = submissions.c.user, jobs.c.submission_id
    first_at = func.min(submissions.c.created_at).over(partition_by=user)
    taken_at = queue_turns.c.claimed_at
    queued = (jobs.c.state == State.QUEUED, jobs.c.batch_id.is_(None), *among)
    own = (
        select(
            number,
            func.row_number().over(partition_by=user, order_by=number).label("turn"),
            case((taken_at > first_at, taken_at), else_=first_at).label("since"),
        )
        .join(submissions, submissions.c.id == number)
        .join(queue_turns, queue_turns.c.user == user, isouter=True)
        .where(*queued, submissions.c.rejudge_id.is_(None))
        .subquery()
    )
    order = (submissions.c.rejudge_id.is_not(None), own.c.turn, own.c.since, number)
    return (
        select(number, func.row_number().over(order_by=order).label("position"))
        .join(submissions, submissions.c.id == number)
        .join(own, own.c.submission_id == number, isouter=True)
        .where(*queued)
        .subquery("positions")
    )
