"""What the admins' forms have in common: who may send one, and how a moment is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Form, Request
from fastapi.responses import RedirectResponse

from grader.problem import Problem
from grader.server.http.auth import AdminUser, check_csrf
from grader.server.http.lookup import problem_or_404
from grader.server.services import Invalid
from grader.server.services.accounts import User
from grader.server.services.container import Services


async def _sender(request: Request, admin: AdminUser, csrf: Annotated[str, Form()] = "") -> User:
    check_csrf(request, csrf)
    return admin


FormAdmin = Annotated[User, Depends(_sender)]
"""The admin who sent a form with the CSRF token of their session. Others are refused."""


def back_to(path: str) -> RedirectResponse:
    """Show a page after a form was sent, so that reloading it sends nothing again."""
    return RedirectResponse(path, 303)


def utc_moment(field: str, text: str) -> datetime | None:
    """The moment of a form's `datetime-local` field, which is in UTC; None if it is empty.

    Raises `Invalid`, which names the field.
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{field}: write a time in UTC, such as 2030-05-01T21:59") from None
    if moment.tzinfo is not None:
        raise Invalid(f"{field}: write the time in UTC, without a time zone")
    return moment.replace(tzinfo=UTC)


def whole_number(field: str, text: str, most: int, least: int = 1) -> int | None:
    """The number of a form's field; None if it is empty. Raises `Invalid`, which names the
    field."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise Invalid(f"{field}: write a whole number from {least} to {most:,}")
    return int(text)


def utc_field(moment: datetime | None) -> str:
    """A moment as the value of a form's `datetime-local` field, in UTC."""
    if moment is None:
        return ""
    shown = moment.astimezone(UTC).replace(tzinfo=None)
    return shown.isoformat(timespec="seconds" if shown.second else "minutes")


def problem_named(services: Services, admin: User, name: str) -> Problem:
    """A problem of this server. Raises `Refusal` if there is none of this name."""
    return problem_or_404(services, admin, name)[0]
