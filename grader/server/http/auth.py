"""Who calls, and whether he may: what routes ask for, and the one form of a refusal.

`middleware` has settled who the caller is before a route runs, and has left him in the
request's state.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from grader.report import one_line
from grader.server.services.accounts import User
from grader.server.services.services import Services

COOKIE = "grade_session"
"""The pages' cookie: HttpOnly, SameSite=Strict, Secure on https."""


class ErrorText(BaseModel):
    """What went wrong."""

    code: str
    """For programs; it stays the same from version to version."""
    message: str
    """One line for a person, which says what to do."""


class ErrorReply(BaseModel):
    """Every answer of status 400 and above."""

    error: ErrorText


class Refusal(HTTPException):
    """A request that is not served. `fail` raises it."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code


def fail(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> NoReturn:
    """Answer with an error. `message` is one line that says what to do."""
    raise Refusal(status, code, message, headers)


def banned(reason: str) -> Refusal:
    """The refusal of one who is banned."""
    return Refusal(403, "banned", one_line(f"you are banned: {reason or 'no reason given'}"))


def check_open(tools: Services) -> None:
    """Raise the refusal of new work, once the server ends."""
    if tools.ending.begun:
        wait = {"Retry-After": "30"}
        fail(503, "draining", "this server stops and takes nothing new; try again in 30 s", wait)


def error_body(code: str, message: str) -> dict[str, Any]:
    """The JSON of every error."""
    return {"error": {"code": code, "message": message}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these, for the OpenAPI document."""
    always = {400, 408, 413, 422, 429, 503}
    return {
        status: {"model": ErrorReply, "description": _MEANINGS[status]}
        for status in sorted(always | set(statuses))
    }


_MEANINGS = {
    400: "The request cannot be read.",
    401: "Without a token, or with one that is not valid.",
    403: "This user may not do that.",
    404: "There is no such thing, or it is not shown to this user.",
    408: "The body took too long.",
    409: "It is in a state in which this cannot be done.",
    413: "The body or the file is too large.",
    415: "No language claims this file's extension.",
    422: "A value makes no sense; the message says which.",
    429: "Too often; Retry-After says when to try again.",
    503: "The server cannot do it now; Retry-After says when to try again.",
}


# These are async, though they wait for nothing: the framework calls all else in another thread.
async def services(request: Request) -> Services:
    """What the server was started with."""
    found: Services = request.app.state.services
    return found


# They only say in the OpenAPI document how one authenticates; the gate has done the work.
_bearer = HTTPBearer(auto_error=False, description="A token of `grade admin user add`.")
_cookie = APIKeyCookie(name=COOKIE, auto_error=False, description="The pages' session.")


async def _caller(
    request: Request,
    _token: Annotated[Any, Depends(_bearer)],
    _session: Annotated[Any, Depends(_cookie)],
) -> User | None:
    caller: User | None = request.state.caller
    return caller


def _of_role(*roles: str) -> Any:
    async def check(caller: Annotated[User | None, Depends(_caller)]) -> User:
        if caller is None:
            fail(401, "no_token", NO_TOKEN, {"WWW-Authenticate": "Bearer"})
        if caller.role not in (*roles, "admin"):
            needed = roles[0] if roles else "admin"
            fail(
                403,
                "wrong_role",
                f"this needs the token of a user with the role {needed}, and yours is of a "
                f"{caller.role}; `grade admin user add NAME --role {needed}` makes one",
            )
        return caller

    return Depends(check)


NO_TOKEN = "this needs a token: `grade login`, or the header 'Authorization: Bearer TOKEN'"

Tools = Annotated[Services, Depends(services)]
"""The server's services."""
Caller = Annotated[User | None, Depends(_caller)]
"""Whoever calls; None for one who has not said."""
Known = Annotated[User, _of_role("competitor", "worker")]
"""Anyone with a token."""
Competitor = Annotated[User, _of_role("competitor")]
"""A competitor, or an admin."""
Worker = Annotated[User, _of_role("worker")]
"""A worker, or an admin."""
Admin = Annotated[User, _of_role()]
"""An admin."""


def is_still(request: Request, tools: Services, caller: User | None) -> bool:
    """Whether a caller would be let in as the same again: for an answer that goes on for long."""
    if caller is None:
        return True
    authorization = request.headers.get("authorization")
    token = authorization.partition(" ")[2].strip() if authorization else request.cookies[COOKIE]
    return tools.accounts.whoami(token) == caller


def csrf_field(request: Request) -> str:
    """What a form of our pages carries to prove that it is ours; empty without a session."""
    session = request.cookies.get(COOKIE, "") if request.state.caller else ""
    return hashlib.sha256(f"csrf{session}".encode()).hexdigest() if session else ""


def check_csrf(request: Request, field: str) -> None:
    """Raise the refusal of a form that is not ours."""
    if not hmac.compare_digest(csrf_field(request).encode(), field.encode()):
        fail(403, "cross_site", "this form is not from here or is old; load the page again")
