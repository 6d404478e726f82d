"""What a caller may read: problems, submissions and the queue, filtered by `visibility`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from grader.fleet import Job, State
from grader.fleet.job import unschedulable_reason
from grader.problem import Problem
from grader.report import Report
from grader.server.services import NotFound, visibility
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.server.services.submission_queries import SubmissionSummary
from grader.server.services.teams import Team
from grader.server.services.visibility import Access

VisibleSubmission = tuple[Job, SubmissionSummary, Access]
"""A submission: its job, its summary, and what of it the caller may see."""


def board_settings(services: Services) -> dict[str, BoardSettings]:
    """The settings of every problem's board, by problem."""
    stored = services.admin.boards()
    return {name: stored.get(name, BoardSettings()) for name in services.problems}


def visible_problems(
    services: Services, caller: User | None
) -> list[tuple[Problem, BoardSettings]]:
    """The problems that the caller may see, with the settings of their boards."""
    settings = board_settings(services)
    return [
        (problem, settings[name])
        for name, problem in services.problems.items()
        if visibility.can_see_board(caller, settings[name], services.now())
    ]


def counted_problems(services: Services, caller: User | None) -> dict[str, datetime | None]:
    """The problems whose verdicts the caller may see in numbers: of boards that they may see, after
    the deadline. Each with the moment since which it is frozen for the caller. An admin sees all.
    """
    now, is_admin = services.now(), caller is not None and caller.role == "admin"
    return {
        problem.name: visibility.frozen_since(caller, board, now)
        for problem, board in visible_problems(services, caller)
        if is_admin or board.deadline is None or visibility.deadline_passed(board, now)
    }


def daily_left(
    services: Services, caller: User | None, boards: Mapping[str, BoardSettings]
) -> dict[str, int]:
    """Problem → how many files the caller may submit at the moment, for those of these boards
    (problem → settings) that have a daily limit for them."""
    limits = {name: board.daily_limit for name, board in boards.items() if board.daily_limit}
    if caller is None or caller.role == "admin" or not limits:
        return {}
    alone = services.ledger.submitted_in_a_day(caller.name)
    together = services.ledger.submitted_in_a_day(caller.name, caller.team) if caller.team else {}
    left: dict[str, int] = {}
    for name, limit in limits.items():
        counted = together if caller.team and boards[name].team_size else alone
        left[name] = max(0, limit - counted.get(name, 0))
    return left


def find_problem(
    services: Services, caller: User | None, name: str
) -> tuple[Problem, BoardSettings] | None:
    """A problem and its board; None if there is none that the caller may see."""
    problem = services.problems.get(name)
    if problem is None:
        return None
    board = services.admin.board(name)
    return (problem, board) if visibility.can_see_board(caller, board, services.now()) else None


def find_submission(
    services: Services, caller: User | None, number: int
) -> VisibleSubmission | None:
    """A submission; None if there is none of this number that the caller may see. An item of a
    batch is seen only by way of its batch."""
    job, summary = services.ledger.job(number), services.submissions.summary(number)
    if job is None or summary is None or job.batch_id is not None:
        return None
    access = access_to(services, caller, summary, services.admin.board(summary.problem))
    return (visible_job(job, access), summary, access) if access.exists else None


def find_team(services: Services, caller: User | None, name: str) -> Team | None:
    """A team; None if there is none of this name that the caller may see: as a member, an admin, or
    one who may see a submission for it."""
    try:
        team = services.teams.team(name)
    except NotFound:
        return None
    if caller is not None and (caller.role == "admin" or caller.team == team.name):
        return team
    shown, _ = list_submissions(services, caller, limit=1, team=team.name)
    return team if shown else None


def list_submissions(
    services: Services,
    caller: User | None,
    *,
    limit: int,
    before: int | None = None,
    user: str | None = None,
    team: str | None = None,
    problem: str | None = None,
    state: State | None = None,
    deleted: bool = False,
) -> tuple[list[tuple[SubmissionSummary, Access]], int | None]:
    """The newest submissions that the caller may see, and the `before` of the next page.

    user, team, problem, state: filters; None for all.
    before: only submissions with a lower number.
    deleted: whether to include deleted submissions.
    """
    settings = board_settings(services)
    is_own = caller is not None and caller.name == user
    problems = [
        name
        for name, board in settings.items()
        if (problem is None or name == problem)
        and (is_own or visibility.can_see_board(caller, board, services.now()))
    ]
    is_admin = caller is not None and caller.role == "admin"
    summaries = services.submissions.summaries(
        limit=limit,
        before=before,
        user=user,
        team=team,
        problems=problems,
        state=state,
        deleted=deleted,
        # What the caller may not see must not use up the limit.
        reader=None if is_admin else caller.name if caller is not None else "",
    )
    visible = [
        (summary, access)
        for summary in summaries
        if (access := access_to(services, caller, summary, settings[summary.problem])).exists
    ]
    return visible, summaries[-1].id if len(summaries) == limit else None


def visible_queue(services: Services, caller: User | None) -> list[Job]:
    """The jobs that run or wait on boards that the caller may see, without those of rejudges."""
    settings, now = board_settings(services), services.now()
    return [
        visible_job(job, visibility.access_for(caller, job.user, board, now, team=job.team))
        for job in services.ledger.queue()
        if not job.rejudge_id
        and (board := settings.get(job.problem)) is not None
        and visibility.can_see_board(caller, board, services.now())
    ]


def queue_obstacles(services: Services) -> Callable[[Job], str | None]:
    """A function that returns why no worker can take a waiting job; None if one can."""
    alive = services.ledger.workers(services.settings.worker_alive_s)
    return lambda job: unschedulable_reason(job, alive) if job.state is State.QUEUED else None


def access_to(
    services: Services, caller: User | None, summary: SubmissionSummary, board: BoardSettings
) -> Access:
    """What of a submission the caller may see."""
    return visibility.access_for(
        caller,
        summary.user,
        board,
        services.now(),
        team=summary.team,
        void=summary.void,
        rejudges=summary.rejudge_id is not None and summary.state is not State.DONE,
        cancelled=summary.state is State.CANCELLED,
        counted_at=summary.counted_at,
    )


def visible_rank(services: Services, summary: SubmissionSummary, access: Access) -> int | None:
    """The rank of a submission's result in the standings that the caller sees; None if it has
    none there."""
    return services.standings.rank(summary, access.as_of) if access.result else None


def visible_job(job: Job, access: Access) -> Job:
    """The job, without its progress for a caller who may not see the result.

    Progress gives away part of the result: only a submission that passed all tests is timed.
    """
    return job if access.result else replace(job, progress=None)


def visible_report(services: Services, summary: SubmissionSummary, access: Access) -> Report | None:
    """The parts of the report that the caller may see; None if there are none."""
    if summary.result_id is None or not access.result:
        return None
    report = services.ledger.board.result(summary.result_id).report
    return visibility.redact(report.model_copy(update={"worker": summary.worker}), access)
