"""Logging in with a token, and logging out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from grader.server.http.auth import COOKIE, Caller, ServicesDep, check_csrf
from grader.server.http.credentials import is_plausible
from grader.server.http.errors import banned, too_many_wrong_tokens
from grader.server.http.throttle import Throttle
from grader.server.pages.templates import render
from grader.server.services.accounts import SESSION_LIFETIME, Banned

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/login")
def login_page(request: Request, to: str = "/") -> Response:
    """The login form. `to` is the page to show after it."""
    return render(request, "login.html", to=_local_path(to), message=None)


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
        return render(request, "login.html", status=401, to=_local_path(to), message=message)
    throttle.success(token)
    answer = RedirectResponse(_local_path(to), 303)
    answer.set_cookie(
        COOKIE, session, max_age=int(SESSION_LIFETIME.total_seconds()), httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
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


def _local_path(to: str) -> str:
    """`to` if it is a path on this site; the home page for anything else."""
    is_local = to.startswith("/") and not to.startswith("//") and "\\" not in to
    return to if is_local and to.isprintable() else "/"
