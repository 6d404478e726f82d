"""The admins' pages of rejudges: start one, see what it changes, apply or drop it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse

from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.http.fields import PrintableText
from grader.server.pages.admin_forms import FormAdmin, back_to, problem_named
from grader.server.pages.templates import render
from grader.server.services import Invalid, NotFound
from grader.server.services.rejudge import GradedBy, Selection

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MAX_NUMBERS = 1000
NUMBER = re.compile(r"[0-9]{1,10}")
"""Submissions that a rejudge may name, as in the API."""

Which = Literal["best", "accepted", "submissions", "worker"]


@router.get("/rejudges")
def rejudges_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """Every rejudge, and a form to start one."""
    return render(
        request,
        "admin/rejudges.html",
        rejudges=services.admin.rejudges.rejudges(),
        problems=services.problems,
    )


@router.post("/rejudges")
def start_rejudge(
    services: ServicesDep,
    admin: FormAdmin,
    problem: Annotated[PrintableText, Form()],
    which: Annotated[Which, Form()] = "best",
    submissions: Annotated[str, Form(max_length=10_000)] = "",
    worker: Annotated[PrintableText, Form()] = "",
    reason: Annotated[PrintableText, Form()] = "",
) -> Response:
    """Queue results to be graded again, behind users' submissions."""
    found = problem_named(services, admin, problem)
    selection = _selection(which, submissions, worker.strip())
    rejudges = services.admin.rejudges
    number = rejudges.start(found.name, found.digest, selection, reason=reason, by=admin.name)
    left_out = rejudges.without_source(found.name, found.digest, selection)
    return back_to(f"/admin/rejudges/{number}" + (f"?left_out={left_out}" if left_out else ""))


@router.get("/rejudges/{number}")
def rejudge_page(
    request: Request,
    services: ServicesDep,
    admin: AdminUser,
    number: int,
    left_out: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """What a rejudge changes: the old and the new verdict, score and rank of each submission."""
    found = services.admin.rejudges.preview(number)
    if found is None:
        raise NotFound(f"there is no rejudge {number}")
    return render(
        request,
        "admin/rejudge.html",
        rejudge=found.rejudge,
        changes=found.changes,
        left_out=left_out,
    )


@router.post("/rejudges/{number}/apply")
def apply_rejudge(services: ServicesDep, admin: FormAdmin, number: int) -> Response:
    """Let the new results count instead of the old ones."""
    services.admin.rejudges.apply(number, by=admin.name)
    return back_to(f"/admin/rejudges/{number}")


@router.post("/rejudges/{number}/drop")
def drop_rejudge(services: ServicesDep, admin: FormAdmin, number: int) -> Response:
    """Leave the board as it is, and cancel the gradings that are not done."""
    services.admin.rejudges.drop(number, by=admin.name)
    return back_to(f"/admin/rejudges/{number}")


def _selection(which: Which, submissions: str, worker: str) -> Selection:
    """What the form selects. Raises `Invalid` if the field that it needs is empty or wrong."""
    if which == "worker":
        if not worker:
            raise Invalid("worker: name a worker, such as farm/host, or a user for all of theirs")
        return GradedBy(worker)
    if which != "submissions":
        return which
    words = submissions.replace(",", " ").split()
    if not 0 < len(words) <= MAX_NUMBERS or not all(map(NUMBER.fullmatch, words)):
        raise Invalid(f"submissions: write 1 to {MAX_NUMBERS} numbers, such as 17 23")
    return [int(word) for word in words]
