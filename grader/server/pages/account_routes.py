"""What users change of their own account, on their page."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from grader.server.http.auth import AnyUser, ServicesDep, check_csrf
from grader.server.services.accounts import User

router = APIRouter(prefix="/account", include_in_schema=False, default_response_class=HTMLResponse)


async def _sender(request: Request, caller: AnyUser, csrf: Annotated[str, Form()] = "") -> User:
    check_csrf(request, csrf)
    return caller


FormUser = Annotated[User, Depends(_sender)]
"""The user who sent a form with the CSRF token of their session. Others are refused."""


@router.post("/identities/{number}/unlink")
def unlink(services: ServicesDep, caller: FormUser, number: int) -> Response:
    """Log in with an account of another site no longer, which ends the sessions of sign-ins."""
    services.sign_ins.unlink(caller.name, number, by=caller.name)
    return _back_to_own_page(caller)


def _back_to_own_page(caller: User) -> Response:
    return RedirectResponse(f"/users/{quote(caller.name, safe='')}", 303)
