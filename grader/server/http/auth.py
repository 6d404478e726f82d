"""Route dependencies for the caller and their role, and the CSRF check of the pages' forms.

The middleware has authenticated the caller before a route runs, and left them in the request's
state.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, HTTPBearer

from grader.server.http.errors import NO_TOKEN, fail
from grader.server.services.accounts import User
from grader.server.services.container import Services

COOKIE = "grade_session"
"""The session cookie of the pages: HttpOnly, SameSite=Strict, Secure over https."""


# These functions await nothing. They are async since the framework runs others in a thread.
async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


# These document authentication in the OpenAPI document. The middleware does it.
_bearer = HTTPBearer(
    scheme_name="bearer", auto_error=False, description="A token of `grade admin user add`."
)
_cookie = APIKeyCookie(
    scheme_name="session", name=COOKIE, auto_error=False, description="The pages' session."
)

OPTIONAL_TOKEN: dict[str, Any] = {"security": [{}]}
"""The `openapi_extra` of a route that needs no token: "none" is one of the ways to authenticate."""


async def _caller(
    request: Request,
    _token: Annotated[Any, Depends(_bearer)],
    _session: Annotated[Any, Depends(_cookie)],
) -> User | None:
    caller: User | None = request.state.caller
    return caller


def _require_role(*roles: str) -> Any:
    """A dependency on a caller with one of these roles; an admin has them all."""

    async def check(caller: Annotated[User | None, Depends(_caller)]) -> User:
        if caller is None:
            fail(401, "no_token", NO_TOKEN, {"WWW-Authenticate": "Bearer"})
        if caller.role not in (*roles, "admin"):
            needed = roles[0] if roles else "admin"
            fail(
                403,
                "wrong_role",
                f"this needs a token with the role {needed}, and yours has the role "
                f"{caller.role}; `grade admin user add NAME --role {needed}` makes one",
            )
        return caller

    return Depends(check)


ServicesDep = Annotated[Services, Depends(_services)]
"""The server's services."""
Caller = Annotated[User | None, Depends(_caller)]
"""The caller; None without a token or a session."""
AnyUser = Annotated[User, _require_role("competitor", "worker")]
"""A caller with a token, of any role."""
CompetitorUser = Annotated[User, _require_role("competitor")]
"""A competitor, or an admin."""
WorkerUser = Annotated[User, _require_role("worker")]
"""A worker, or an admin."""
AdminUser = Annotated[User, _require_role()]
"""An admin."""


def check_not_draining(services: Services) -> None:
    """Refuse new work while the server shuts down."""
    if services.drain.started:
        message = "this server is stopping and takes no new work; try again in 30 s"
        fail(503, "draining", message, {"Retry-After": "30"})


def is_still_authenticated(request: Request, services: Services, caller: User | None) -> bool:
    """Whether the request's token or session is still valid, for a response that lasts long."""
    if caller is None:
        return True
    authorization = request.headers.get("authorization")
    token = authorization.partition(" ")[2].strip() if authorization else request.cookies[COOKIE]
    return services.accounts.whoami(token) == caller


def csrf_field(request: Request) -> str:
    """The CSRF token of the session's forms; empty without a session."""
    session = request.cookies.get(COOKIE, "") if request.state.caller else ""
    return hashlib.sha256(f"csrf{session}".encode()).hexdigest() if session else ""


def check_csrf(request: Request, field: str) -> None:
    """Refuse a form without the session's CSRF token."""
    if not hmac.compare_digest(csrf_field(request).encode(), field.encode()):
        message = "this form is from another site or from an old session; reload the page"
        fail(403, "cross_site", message)


def check_form(request: Request, caller: User | None, csrf: str) -> User:
    """The user who sent a form. Raises `Refusal` without a session or its CSRF token."""
    if caller is None:
        fail(401, "no_session", "your session has ended; log in again")
    check_csrf(request, csrf)
    return caller
