"""The session cookie of the pages, and the page to show after a login."""

from __future__ import annotations

from fastapi import Request, Response

from grader.server.http.auth import COOKIE
from grader.server.services.tokens import SESSION_LIFETIME

INVITATION_COOKIE = "grade_invitation"
"""The code of the invitation with which a browser came, for the form after a sign-in."""


def set_session_cookie(request: Request, answer: Response, session: str) -> None:
    """Give the browser a session for its lifetime."""
    answer.set_cookie(
        COOKIE, session, max_age=int(SESSION_LIFETIME.total_seconds()), httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def local_path(to: str) -> str:
    """`to` if it is a path on this site; the home page for anything else."""
    is_local = to.startswith("/") and not to.startswith("//") and "\\" not in to
    return to if is_local and to.isprintable() else "/"
