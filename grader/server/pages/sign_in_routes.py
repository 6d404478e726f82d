"""Signing in with an account of another site, and linking one to a user.

The provider sends the browser back from another site, and browsers do not send the session cookie
with such a request. So a cookie of its own holds the secret of the sign-in: SameSite=Lax, for the
addresses below ``/login``, for ten minutes.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any
from urllib.parse import quote

from anyio.to_thread import run_sync
from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from grader.server.http.auth import AnyUser, Caller, ServicesDep, check_csrf
from grader.server.http.errors import banned, fail
from grader.server.http.fields import PrintableText
from grader.server.http.identity_provider import IdentityProvider, ProviderFailed
from grader.server.http.session import INVITATION_COOKIE, local_path, set_session_cookie
from grader.server.pages.templates import render
from grader.server.services import Conflict, Invalid
from grader.server.services.accounts import MAX_NAME_CHARS, Banned
from grader.server.services.container import Services
from grader.server.services.sign_in import SIGN_IN_LIFETIME, Person, SignIn

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

COOKIE = "grade_sign_in"

log = logging.getLogger(__name__)


@router.get("/login/with/{provider}")
async def sign_in(
    request: Request, services: ServicesDep, provider: str, to: PrintableText = "/"
) -> Response:
    """Send the browser to a provider. `to` is the page to show after the sign-in."""
    url, details = await _begin(request, provider)
    details["to"] = local_path(to)
    secret = await run_sync(services.sign_ins.begin, provider, details)
    return _with_cookie(request, RedirectResponse(url, 303), secret)


@router.post("/login/with/{provider}")
async def link(
    request: Request,
    services: ServicesDep,
    caller: AnyUser,
    provider: str,
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Link an account of a provider to the user.

    The content policy lets no form lead to another site, so the answer is a page that does.
    """
    check_csrf(request, csrf)
    url, details = await _begin(request, provider)
    details["to"] = f"/users/{quote(caller.name, safe='')}"
    secret = await run_sync(services.sign_ins.begin, provider, details, caller.id)
    title = services.providers[provider].title
    page = render(request, "onward.html", secret=True, heading=f"On to {title}", url=url)
    return _with_cookie(request, page, secret)


@router.get("/login/with/{provider}/callback")
async def callback(
    request: Request,
    services: ServicesDep,
    provider: str,
    state: Annotated[str, Query(max_length=200)] = "",
    code: Annotated[str, Query(max_length=4000)] = "",
    error: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Take the provider's answer: open a session, link the account, or ask for a name."""
    one = _provider(request, provider)
    secret = request.cookies.get(COOKIE, "")
    found = await run_sync(services.sign_ins.take, secret, provider, state)
    if found.details["redirect_uri"] != _redirect_uri(request, provider):
        raise Invalid("this sign-in began at another address of this server; begin again")
    title = one.settings.title
    if error or not code:
        log.info("sign-in by %s was refused there", provider)
        fail(403, "sign_in_refused", f"{title} did not sign you in; try again, or use a token")
    try:
        person = await one.person(code, found.details)
    except ProviderFailed as failure:
        log.warning("sign-in failed: %s", failure)
        fail(403, "sign_in_failed", f"the sign-in with {title} failed; try again")
    return await run_sync(_signed_in, request, services, found, person)


@router.get("/login/name")
def name_page(request: Request, services: ServicesDep) -> Response:
    """The form in which a new user chooses a name."""
    return _name_page(request, services, None)


@router.post("/login/name")
def sign_up(
    request: Request,
    services: ServicesDep,
    caller: Caller,
    name: Annotated[PrintableText, Form()] = "",
    code: Annotated[PrintableText, Form()] = "",
) -> Response:
    """Create the user of a person named by a provider, and open a session."""
    found = services.sign_ins.awaited(_secret(request))
    _check_sign_up(services, found)
    try:
        if services.settings.sign_up == "invited" and not code:
            raise Invalid("the code of an invitation is needed")
        session = services.sign_ins.sign_up(_secret(request), name, code.strip())
    except (Conflict, Invalid) as error:
        return _name_page(request, services, str(error), name, status=409)
    answer = RedirectResponse(found.details["to"], 303)
    set_session_cookie(request, answer, session)
    for cookie in (COOKIE, INVITATION_COOKIE):
        answer.delete_cookie(cookie, path="/login", httponly=True, samesite="lax")
    return answer


def _signed_in(request: Request, services: Services, found: SignIn, person: Person) -> Response:
    """The answer to a person named by a provider."""
    to = found.details["to"]
    if found.user_id is not None:
        refused = services.sign_ins.link(found.user_id, person)
        if refused is not None:
            raise banned(refused.reason)
        return render(request, "onward.html", secret=True, heading="The account is linked", url=to)
    session = services.sign_ins.open_session(person)
    if isinstance(session, Banned):
        raise banned(session.reason)
    if session is None:
        _check_sign_up(services, found)
        secret = services.sign_ins.await_name(found.provider, person, to)
        return _with_cookie(request, RedirectResponse("/login/name", 303), secret)
    # A redirect would still be part of the other site's navigation, so that the browser would not
    # send the new cookie along. A page's own navigation does.
    answer = render(request, "onward.html", secret=True, heading="You are logged in", url=to)
    set_session_cookie(request, answer, session)
    return answer


def _check_sign_up(services: Services, found: SignIn) -> None:
    """Refuse strangers if the server does not let them in."""
    if services.settings.sign_up == "closed":
        title = services.providers[found.provider].title
        fail(
            403,
            "no_sign_up",
            f"no user has this {title} account: log in with your token and link it on your page, "
            "or ask an admin for a user",
        )


def _name_page(
    request: Request, services: Services, message: str | None, name: str = "", status: int = 200
) -> Response:
    found = services.sign_ins.awaited(_secret(request))
    return render(
        request,
        "sign_up.html",
        status=status,
        secret=True,
        provider=services.providers[found.provider].title,
        name=name or found.details["name"][:MAX_NAME_CHARS],
        code=request.cookies.get(INVITATION_COOKIE, ""),
        needs_code=services.settings.sign_up == "invited",
        message=message,
    )


def _secret(request: Request) -> str:
    return request.cookies.get(COOKIE, "")


def _provider(request: Request, name: str) -> IdentityProvider:
    providers: dict[str, IdentityProvider] = request.app.state.identity_providers
    if name not in providers:
        fail(404, "not_found", "this server has no sign-in of this name")
    return providers[name]


async def _begin(request: Request, name: str) -> tuple[str, dict[str, Any]]:
    """The provider's address to go to, and what is to be kept."""
    provider = _provider(request, name)
    try:
        return await provider.begin(_redirect_uri(request, name))
    except ProviderFailed as failure:
        log.warning("sign-in failed: %s", failure)
        title = provider.settings.title
        message = f"{title} cannot be reached; try again later, or use a token"
        fail(503, "unavailable", message, {"Retry-After": "30"})


def _redirect_uri(request: Request, name: str) -> str:
    """Where the provider sends the browser back to: this server, as the browser addresses it."""
    return f"{str(request.base_url).rstrip('/')}/login/with/{name}/callback"


def _with_cookie(request: Request, answer: Response, secret: str) -> Response:
    answer.set_cookie(
        COOKIE, secret, max_age=int(SIGN_IN_LIFETIME.total_seconds()), path="/login",
        httponly=True, samesite="lax", secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer
