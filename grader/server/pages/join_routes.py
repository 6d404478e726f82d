"""The page of an invitation, where its code makes an account or lets a user join a group."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from grader.server.http.auth import AnyUser, Caller, ServicesDep, check_csrf
from grader.server.http.fields import PrintableText
from grader.server.http.session import INVITATION_COOKIE, set_session_cookie
from grader.server.pages.templates import render, show_token
from grader.server.services import Conflict, Invalid
from grader.server.services.accounts import validate_name
from grader.server.services.container import Services
from grader.server.services.sign_in import SIGN_IN_LIFETIME

router = APIRouter(prefix="/join", include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/{code}")
def join_page(request: Request, services: ServicesDep, code: str) -> Response:
    """What the invitation is for, and the form to use it.

    A browser that goes on to a provider keeps the code for the form after the sign-in.
    """
    page = _page(request, services, code)
    page.set_cookie(
        INVITATION_COOKIE, code, max_age=int(SIGN_IN_LIFETIME.total_seconds()), path="/login",
        httponly=True, samesite="lax", secure=request.url.scheme == "https",
    )  # fmt: skip
    return page


@router.post("/{code}")
def sign_up(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    code: str,
    name: Annotated[PrintableText, Form()] = "",
) -> Response:
    """Create a user, and show their first token."""
    services.invitations.find(code)
    try:
        if caller is not None:
            raise Conflict("you have an account already; log out to make another one")
        token, session = services.invitations.sign_up(code, name)
    except (Conflict, Invalid) as error:
        return _page(request, services, code, str(error), name, status=409)
    answer = show_token(request, validate_name(name), token)
    set_session_cookie(request, answer, session)
    return answer


@router.post("/{code}/group")
def join_group(
    request: Request,
    services: ServicesDep,
    caller: AnyUser,
    code: str,
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Let the user who is logged in join the group."""
    check_csrf(request, csrf)
    services.invitations.join(code, caller)
    return RedirectResponse("/", 303)


def _page(
    request: Request,
    services: Services,
    code: str,
    message: str | None = None,
    name: str = "",
    status: int = 200,
) -> Response:
    invitation = services.invitations.find(code)
    can_sign_in = services.settings.sign_up != "closed"
    return render(
        request,
        "join.html",
        status=status,
        secret=True,
        code=code,
        group=invitation.group,
        message=message,
        name=name,
        providers=services.providers.values() if can_sign_in else [],
    )
