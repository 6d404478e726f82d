"""Teams, which `grade team` calls: a new one, what one is, and the caller's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from grader.server.api.schemas import JoinRequest, NewTeam, TeamCode, TeamInfo
from grader.server.http.auth import OPTIONAL_TOKEN, Caller, CompetitorUser, ServicesDep
from grader.server.http.errors import error_responses
from grader.server.http.fields import PrintableText
from grader.server.http.lookup import own_team, team_or_404

router = APIRouter(tags=["teams"])

TeamName = Annotated[PrintableText, Path(description="A team's name, in any case.")]


@router.post(
    "/teams",
    status_code=201,
    response_model=TeamInfo,
    responses=error_responses(409),
    summary="Make a team",
)
def add_team(services: ServicesDep, caller: CompetitorUser, new: NewTeam) -> TeamInfo:
    """The caller is its first member. A user is in one team at a time."""
    return TeamInfo.of(services.teams.add(new.name, caller))


@router.get(
    "/teams/{team}",
    response_model=TeamInfo,
    responses=error_responses(404),
    openapi_extra=OPTIONAL_TOKEN,
    summary="A team and its members",
)
def get_team(services: ServicesDep, caller: Caller, team: TeamName) -> TeamInfo:
    """Shown to its members, and to those who may see a submission of it."""
    return TeamInfo.of(team_or_404(services, caller, team))


@router.post(
    "/me/team/codes",
    status_code=201,
    response_model=TeamCode,
    responses=error_responses(404, 409),
    summary="Invite someone into your team",
)
def add_code(services: ServicesDep, caller: CompetitorUser) -> TeamCode:
    """A code with which one user can join within a week. It is shown only in this answer."""
    code, until = services.teams.invite(own_team(caller), caller)
    return TeamCode(code=code, until=until)


@router.post(
    "/me/team",
    response_model=TeamInfo,
    responses=error_responses(409),
    summary="Join a team",
)
def join_team(services: ServicesDep, caller: CompetitorUser, request: JoinRequest) -> TeamInfo:
    """With the code that a member made. It is used up."""
    return TeamInfo.of(services.teams.join(request.code, caller))


@router.delete(
    "/me/team",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Leave your team",
)
def leave_team(services: ServicesDep, caller: CompetitorUser) -> None:
    """What was submitted for it stays with it. Without members and submissions, it ends."""
    services.teams.leave(own_team(caller), caller)
