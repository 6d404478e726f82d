"""The admins' pages of users and their tokens. A token is shown once, in the answer to the form
that made it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.http.fields import PrintableText
from grader.server.http.lookup import issuer_of
from grader.server.pages.admin_forms import FormAdmin, back_to
from grader.server.pages.templates import render
from grader.server.services import NotFound
from grader.server.services.accounts import Account, Role
from grader.server.services.container import Services
from grader.server.services.sign_in import Person

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/users")
def users_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """Every user, and a form to add one."""
    return render(request, "admin/users.html", users=services.accounts.users())


@router.post("/users")
def add_user(
    request: Request,
    services: ServicesDep,
    admin: FormAdmin,
    name: Annotated[PrintableText, Form()],
    role: Annotated[Role, Form()] = "competitor",
) -> Response:
    """Add a user, and show their first token."""
    token = services.accounts.add_user(name, role, by=admin.name)
    return _show_token(request, _account(services, name), token)


@router.get("/users/{name}")
def user_page(request: Request, services: ServicesDep, admin: AdminUser, name: str) -> Response:
    """A user, their tokens, and what may be done about them."""
    account = _account(services, name)
    return render(
        request,
        "admin/user.html",
        account=account,
        tokens=services.accounts.tokens(account.name),
        identities=services.sign_ins.identities(account.name),
        providers=services.providers.values(),
        graded=services.admin.graded_by(account.name),
    )


@router.post("/users/{name}/tokens")
def add_token(
    request: Request,
    services: ServicesDep,
    admin: FormAdmin,
    name: str,
    label: Annotated[PrintableText, Form()] = "",
) -> Response:
    """Make another token, and show it."""
    token = services.accounts.new_token(name, label, by=admin.name)
    return _show_token(request, _account(services, name), token)


@router.post("/users/{name}/tokens/revoke")
def revoke_tokens(services: ServicesDep, admin: FormAdmin, name: str) -> Response:
    """Revoke all of a user's tokens, which ends their sessions."""
    services.accounts.revoke(name, by=admin.name)
    return _back_to_user(name)


@router.post("/users/{name}/tokens/{number}/revoke")
def revoke_token(services: ServicesDep, admin: FormAdmin, name: str, number: int) -> Response:
    """Revoke one token, which ends the sessions that it opened."""
    _check_token(services, name, number)
    services.accounts.revoke(number, by=admin.name)
    return _back_to_user(name)


@router.post("/users/{name}/tokens/{number}/rotate")
def rotate_token(
    request: Request, services: ServicesDep, admin: FormAdmin, name: str, number: int
) -> Response:
    """Replace a token by a new one, and show it."""
    _check_token(services, name, number)
    token = services.accounts.rotate(number, by=admin.name)
    return _show_token(request, _account(services, name), token)


@router.post("/users/{name}/identities")
def link_identity(
    services: ServicesDep,
    admin: FormAdmin,
    name: str,
    provider: Annotated[PrintableText, Form()] = "",
    subject: Annotated[PrintableText, Form()] = "",
) -> Response:
    """Let a user sign in with an account of another site."""
    person = Person(issuer_of(services, provider), subject.strip())
    services.sign_ins.link_by_admin(name, person, by=admin.name)
    return _back_to_user(name)


@router.post("/users/{name}/identities/{number}/unlink")
def unlink_identity(services: ServicesDep, admin: FormAdmin, name: str, number: int) -> Response:
    """Let a user no longer sign in with an account, which ends the sessions of sign-ins."""
    services.sign_ins.unlink(name, number, by=admin.name)
    return _back_to_user(name)


@router.post("/users/{name}/ban")
def ban(
    services: ServicesDep,
    admin: FormAdmin,
    name: str,
    reason: Annotated[PrintableText, Form()] = "",
) -> Response:
    """Lock a user out, cancel their jobs, and take their results off the boards."""
    services.admin.ban(name, reason, by=admin.name)
    return _back_to_user(name)


@router.post("/users/{name}/unban")
def unban(services: ServicesDep, admin: FormAdmin, name: str) -> Response:
    """Let a user in again; their results count again."""
    services.admin.unban(name, by=admin.name)
    return _back_to_user(name)


@router.post("/users/{name}/hold")
def hold(services: ServicesDep, admin: FormAdmin, name: str) -> Response:
    """Take what a user's workers graded off the boards, until an admin decides."""
    services.admin.hold(name, by=admin.name)
    return _back_to_user(name)


@router.post("/users/{name}/unhold")
def unhold(services: ServicesDep, admin: FormAdmin, name: str) -> Response:
    """Release what `hold` took off the boards."""
    services.admin.unhold(name, by=admin.name)
    return _back_to_user(name)


def _account(services: Services, name: str) -> Account:
    account = services.accounts.user(name)
    if account is None:
        raise NotFound("there is no user of this name")
    return account


def _check_token(services: Services, name: str, number: int) -> None:
    """Raises `NotFound` unless the token is the user's, as the page that was used says."""
    if number not in {token.id for token in services.accounts.tokens(name)}:
        raise NotFound(f"this user has no token {number}")


def _show_token(request: Request, account: Account, token: str) -> Response:
    return render(request, "admin/token.html", account=account, token=token)


def _back_to_user(name: str) -> Response:
    return back_to(f"/admin/users/{quote(name, safe='')}")
