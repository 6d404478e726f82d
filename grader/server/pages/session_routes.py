"""Logging in with a token, and logging out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from grader.server.http.auth import COOKIE, Caller, ServicesDep, check_csrf
from grader.server.http.credentials import is_plausible
from grader.server.http.errors import banned, too_many_wrong_tokens
from grader.server.http.session import local_path, set_session_cookie
from grader.server.http.throttle import Throttle
from grader.server.pages.templates import render
from grader.server.services.accounts import Banned
from grader.server.services.container import Services

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/login")
def login_page(request: Request, services: ServicesDep, to: str = "/") -> Response:
    """The login form. `to` is the page to show after it."""
    return _login_page(request, services, to)


@router.post("/login")
def log_in(
    request: Request,
    services: ServicesDep,
    token: Annotated[str, Form(max_length=200)] = "",
    to: Annotated[str, Form()] = "/",
) -> Response:
    """Exchange a token for a session cookie."""
    address = request.client.host if request.client else "unknown"
    throttle: Throttle = request.state.throttle
    token = token.strip()
    session = None
    if is_plausible(token) and not throttle.is_known_wrong(address, token):
        if (wait_s := throttle.lookup_wait_s(address, token)) is not None:
            raise too_many_wrong_tokens(wait_s)
        session = services.accounts.open_session(token)
    if isinstance(session, Banned):
        raise banned(session.reason)
    if session is None:
        if (wait_s := throttle.failure(address, token)) is not None:
            raise too_many_wrong_tokens(wait_s)
        message = "This token is not valid. Paste the whole token, or ask an admin for another one."
        return _login_page(request, services, to, message, status=401)
    throttle.success(token)
    answer = RedirectResponse(local_path(to), 303)
    set_session_cookie(request, answer, session)
    return answer


@router.post("/logout")
def log_out(
    request: Request, services: ServicesDep, caller: Caller, csrf: Annotated[str, Form()] = ""
) -> Response:
    """End the session."""
    if caller is not None and (session := request.cookies.get(COOKIE)):
        check_csrf(request, csrf)
        services.accounts.close_session(session)
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _login_page(
    request: Request, services: Services, to: str, message: str | None = None, status: int = 200
) -> Response:
    providers = services.providers.values()
    return render(
        request,
        "login.html",
        status=status,
        to=local_path(to),
        message=message,
        providers=providers,
    )
