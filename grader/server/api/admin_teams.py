"""The admins' API of teams, which `grade admin team` calls."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from grader.server.api.admin_schemas import TeamList
from grader.server.api.schemas import TeamInfo
from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.http.errors import error_responses
from grader.server.http.fields import PrintableText

router = APIRouter(prefix="/admin/teams", tags=["admin"])

TeamName = Annotated[PrintableText, Path(description="A team's name, in any case.")]
UserName = Annotated[PrintableText, Path(description="A user's name, upper and lower case alike.")]


@router.get("", response_model=TeamList, responses=error_responses(), summary="List the teams")
def list_teams(services: ServicesDep, admin: AdminUser) -> TeamList:
    """Every team with its members."""
    return TeamList(teams=[TeamInfo.of(team) for team in services.teams.teams()])


@router.delete(
    "/{team}", status_code=204, responses=error_responses(404, 409), summary="Delete a team"
)
def remove_team(services: ServicesDep, admin: AdminUser, team: TeamName) -> None:
    """Its members are in none then. Refused for one with submissions, which keep its name."""
    services.teams.remove(team, by=admin.name)


@router.put(
    "/{team}/members/{name}",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Put a user into a team",
)
def add_member(services: ServicesDep, admin: AdminUser, team: TeamName, name: UserName) -> None:
    """Refused while the user is in another team."""
    services.teams.add_member(team, name, by=admin.name)


@router.delete(
    "/{team}/members/{name}",
    status_code=204,
    responses=error_responses(404),
    summary="Take a user out of a team",
)
def remove_member(services: ServicesDep, admin: AdminUser, team: TeamName, name: UserName) -> None:
    """What the user has submitted for the team stays with it."""
    services.teams.remove_member(team, name, by=admin.name)
