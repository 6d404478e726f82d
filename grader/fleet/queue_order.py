"""The order of the queue, in one SQL query that claims and displayed positions share.

Users take turns: the next submission of each user goes before the second of any. Among users, the
one who has waited longest goes first, counted from the submission or from the moment when a worker
last took one of theirs, whichever is later. What counts for a team takes the turns of the team, as
one user. The submissions of rejudges follow, the oldest first; batches are not in the queue.

So a user's first waiting submission is behind at most one of each other user, however many those
have. The end of a grading changes nothing in the order.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Subquery, case, func, select

from grader.board.owners import owner
from grader.db.tables import jobs, queue_turns, submissions
from grader.fleet.job import IN_FLIGHT_STATES, State


def positions(*among: ColumnElement[bool]) -> Subquery:
    """The columns `submission_id` and `position` of the jobs in flight. Positions count from 1;
    those that workers hold have none.

    among: conditions on jobs and submissions. What does not meet them uses up no turn of its user.
    """
    number, is_queued = jobs.c.submission_id, jobs.c.state == State.QUEUED
    takes_turns = is_queued & submissions.c.rejudge_id.is_(None)
    by_user = (takes_turns, owner)
    turn = func.row_number().over(partition_by=by_user, order_by=number)
    first_at = func.min(submissions.c.created_at).over(partition_by=by_user)
    taken_at = queue_turns.c.claimed_at
    rows = (
        select(
            number,
            is_queued.label("is_queued"),
            case((takes_turns, turn)).label("turn"),
            case((takes_turns & (taken_at > first_at), taken_at), (takes_turns, first_at)).label(
                "since"
            ),
        )
        .join(submissions, submissions.c.id == number)
        .join(queue_turns, queue_turns.c.user == owner, isouter=True)
        .where(jobs.c.state.in_(IN_FLIGHT_STATES), jobs.c.batch_id.is_(None), *among)
        .subquery()
    )
    # Those of rejudges have no turn, and nothing to compare but their numbers.
    order = (rows.c.turn.is_(None), rows.c.turn, rows.c.since, rows.c.submission_id)
    place = func.row_number().over(partition_by=rows.c.is_queued, order_by=order)
    position = case((rows.c.is_queued, place)).label("position")
    return select(rows.c.submission_id, position).subquery("positions")
