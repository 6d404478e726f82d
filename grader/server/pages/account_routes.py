"""What users change of their own account, on their page."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from grader.server.http.auth import AnyUser, CompetitorUser, ServicesDep, check_csrf
from grader.server.http.fields import PrintableText
from grader.server.http.lookup import own_team
from grader.server.pages.templates import render, show_token
from grader.server.services.accounts import User

router = APIRouter(prefix="/account", include_in_schema=False, default_response_class=HTMLResponse)


async def _sender(request: Request, caller: AnyUser, csrf: Annotated[str, Form()] = "") -> User:
    check_csrf(request, csrf)
    return caller


async def _competitor(
    request: Request, caller: CompetitorUser, csrf: Annotated[str, Form()] = ""
) -> User:
    check_csrf(request, csrf)
    return caller


FormUser = Annotated[User, Depends(_sender)]
"""The user who sent a form with the CSRF token of their session. Others are refused."""
FormCompetitor = Annotated[User, Depends(_competitor)]
"""The same, and no worker: their tokens are made by admins."""


@router.post("/tokens")
def add_token(
    request: Request,
    services: ServicesDep,
    caller: FormCompetitor,
    label: Annotated[PrintableText, Form()] = "",
) -> Response:
    """Make another token, and show it."""
    return show_token(request, caller.name, services.accounts.new_own_token(caller.name, label))


@router.post("/tokens/{number}/rotate")
def rotate_token(
    request: Request, services: ServicesDep, caller: FormCompetitor, number: int
) -> Response:
    """Replace a token by a new one, and show it."""
    token = services.accounts.rotate(number, by=caller.name, owner=caller.name)
    return show_token(request, caller.name, token)


@router.post("/tokens/{number}/revoke")
def revoke_token(services: ServicesDep, caller: FormCompetitor, number: int) -> Response:
    """Revoke a token, which ends the sessions that it opened."""
    services.accounts.revoke(number, by=caller.name, owner=caller.name)
    return _back_to_own_page(caller)


@router.post("/identities/{number}/unlink")
def unlink(services: ServicesDep, caller: FormUser, number: int) -> Response:
    """Log in with an account of another site no longer, which ends the sessions of sign-ins."""
    services.sign_ins.unlink(caller.name, number, by=caller.name)
    return _back_to_own_page(caller)


@router.post("/team")
def add_team(
    services: ServicesDep, caller: FormCompetitor, name: Annotated[PrintableText, Form()]
) -> Response:
    """Make a team."""
    services.teams.add(name, caller)
    return _back_to_own_page(caller)


@router.post("/team/codes")
def add_team_code(request: Request, services: ServicesDep, caller: FormCompetitor) -> Response:
    """Make a code to join one's team, and show it."""
    team = own_team(caller)
    code, until = services.teams.invite(team, caller)
    return render(request, "team_code.html", secret=True, team=team, code=code, until=until)


@router.post("/team/join")
def join_team(
    services: ServicesDep, caller: FormCompetitor, code: Annotated[PrintableText, Form()]
) -> Response:
    """Join the team of a code."""
    services.teams.join(code.strip(), caller)
    return _back_to_own_page(caller)


@router.post("/team/leave")
def leave_team(services: ServicesDep, caller: FormCompetitor) -> Response:
    """Leave one's team."""
    services.teams.leave(own_team(caller), caller)
    return _back_to_own_page(caller)


def _back_to_own_page(caller: User) -> Response:
    return RedirectResponse(f"/users/{quote(caller.name, safe='')}", 303)
