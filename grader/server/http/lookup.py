"""Problems and submissions by the names in an address, or a 404."""

from __future__ import annotations

from collections.abc import Sequence

from grader.board import NoSuchVersion, ProblemVersion, choose_version
from grader.problem import Problem
from grader.server.http.errors import fail
from grader.server.services.access import (
    VisibleSubmission,
    find_problem,
    find_submission,
    find_team,
    visible_problems,
)
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings
from grader.server.services.container import Services
from grader.server.services.submission_queries import SubmissionSummary
from grader.server.services.teams import Team
from grader.server.services.visibility import Access


def problem_or_404(
    services: Services, caller: User | None, name: str
) -> tuple[Problem, BoardSettings]:
    """A problem and its board. Raises `Refusal` if the caller may see no such problem."""
    found = find_problem(services, caller, name)
    if found is not None:
        return found
    names = [problem.name for problem, _ in visible_problems(services, caller)]
    message = f"there is no such problem here; there are: {comma_separated(names)}"
    fail(404, "no_such_problem", message)


def version_or_404(services: Services, problem: Problem, text: str) -> ProblemVersion:
    """A version of a problem by number or digest. Raises `Refusal` if there is none."""
    try:
        return choose_version(services.standings.versions(problem), text)
    except NoSuchVersion as error:
        fail(404, "no_such_version", str(error))


def submission_or_404(services: Services, caller: User | None, number: int) -> VisibleSubmission:
    """A submission. Raises `Refusal` if the caller may see none of this number."""
    found = find_submission(services, caller, number)
    if found is not None:
        return found
    fail(404, "no_such_submission", f"there is no submission {number}, or it is not shown to you")


def source_or_refusal(services: Services, summary: SubmissionSummary, access: Access) -> bytes:
    """A submission's source. Raises `Refusal` if the caller may not read it, or it was removed."""
    if not access.source:
        fail(403, "private_source", "this source is its author's; the board does not publish it")
    if summary.source_removed_at is not None:
        fail(
            410,
            "source_removed",
            f"the source of submission {summary.id} was removed on "
            f"{summary.source_removed_at:%Y-%m-%d}, since it was old and did not rank",
        )
    return services.submissions.source(summary.id) or b""


def team_or_404(services: Services, caller: User | None, name: str) -> Team:
    """A team. Raises `Refusal` if there is none of this name that the caller may see."""
    found = find_team(services, caller, name)
    if found is None:
        fail(404, "no_such_team", "there is no such team, or nothing of it is shown to you")
    return found


def own_team(caller: User) -> str:
    """The name of the caller's team. Raises `Refusal` without one."""
    if caller.team is None:
        fail(404, "no_team", "you are in no team; make one, or join one with a member's code")
    return caller.team


def comma_separated(names: Sequence[str]) -> str:
    """Names for a sentence; "none" if there are none."""
    return ", ".join(names) or "none"


def issuer_of(services: Services, provider: str) -> str:
    """The address of a provider, by its name in the settings. Raises `Refusal`."""
    if provider not in services.providers:
        offered = ", ".join(services.providers) or "none"
        fail(404, "not_found", f"this server has no such provider; it has: {offered}")
    return services.providers[provider].issuer
