"""The admins' pages: an overview, held submissions, boards, workers, announcements
and the audit log.

They do what `grade admin` does, by the same services.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse

from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.http.fields import PrintableText
from grader.server.pages.admin_forms import (
    FormAdmin,
    back_to,
    problem_named,
    utc_field,
    utc_moment,
    whole_number,
)
from grader.server.pages.templates import render
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.access import board_settings
from grader.server.services.admin_service import MAX_DAILY_LIMIT, MAX_TEAM_SIZE, BoardSettings
from grader.server.services.announcements import MAX_TEXT_CHARS
from grader.server.services.held import list_held
from grader.server.services.visibility import deadline_passed, is_frozen, is_hidden
from grader.server.services.worker_list import list_workers

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

AUDIT_ROWS = 50
"""Entries on one page of the audit log."""

ANNOUNCEMENT_ROWS = 50
"""Announcements that are listed."""

RECENT_ACTS = 8
"""Entries of the audit log on the overview."""


@router.get("")
def overview_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """Every section, with what waits there."""
    settings = board_settings(services)
    return render(
        request,
        "admin/overview.html",
        held=len(list_held(services)),
        boards=len(settings),
        hidden=sum(is_hidden(board, services.now()) for board in settings.values()),
        users=services.accounts.users(),
        workers=services.ledger.workers(services.settings.worker_alive_s),
        undecided=[one for one in services.admin.rejudges.rejudges() if one.state == "preview"],
        acts=services.admin.audit(RECENT_ACTS),
    )


@router.get("/held")
def held_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """Gradings that failed too often, and results that do not count until they are released."""
    return render(request, "admin/held.html", held=list_held(services))


@router.post("/submissions/{number}/release")
def release(services: ServicesDep, admin: FormAdmin, number: int) -> Response:
    """Queue a held grading again, or let a held result count."""
    if not services.admin.release(number, by=admin.name):
        raise Conflict(f"submission {number} is not held, or no longer")
    return back_to("/admin/held")


@router.post("/submissions/{number}/delete")
def delete(services: ServicesDep, admin: FormAdmin, number: int) -> Response:
    """Cancel a held grading, or delete a held result."""
    if services.admin.delete(number, by=admin.name) is None:
        raise NotFound(f"there is no submission {number}, or it is cancelled or deleted already")
    return back_to("/admin/held")


@router.get("/boards")
def boards_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """The settings of every board."""
    now = services.now()
    boards = [
        (
            services.problems[name],
            board,
            deadline_passed(board, now),
            is_hidden(board, now),
            is_frozen(board, now),
        )
        for name, board in board_settings(services).items()
    ]
    return render(request, "admin/boards.html", boards=boards)


@router.get("/boards/{name}")
def board_page(request: Request, services: ServicesDep, admin: AdminUser, name: str) -> Response:
    """The settings of one board, and the versions of its problem."""
    problem = problem_named(services, admin, name)
    board = services.admin.board(problem.name)
    return render(
        request,
        "admin/board.html",
        problem=problem,
        board=board,
        deadline=utc_field(board.deadline),
        opens_at=utc_field(board.opens_at),
        most_daily=MAX_DAILY_LIMIT,
        most_people=MAX_TEAM_SIZE,
        freeze_at=utc_field(board.freeze_at),
        versions=services.standings.versions(problem),
        groups=[group.name for group in services.groups.groups()],
    )


@router.post("/boards/{name}")
def set_board(
    services: ServicesDep,
    admin: FormAdmin,
    name: str,
    deadline: Annotated[str, Form(max_length=40)] = "",
    opens_at: Annotated[str, Form(max_length=40)] = "",
    daily_limit: Annotated[str, Form(max_length=40)] = "",
    team_size: Annotated[str, Form(max_length=40)] = "",
    freeze_at: Annotated[str, Form(max_length=40)] = "",
    note: Annotated[PrintableText, Form()] = "",
    hidden: Annotated[bool, Form()] = False,
    publish_sources: Annotated[bool, Form()] = False,
    group: Annotated[PrintableText, Form()] = "",
) -> Response:
    """Set all settings of a board."""
    problem = problem_named(services, admin, name)
    settings = BoardSettings(
        deadline=utc_moment("deadline", deadline),
        hidden=hidden,
        publish_sources=publish_sources,
        note=note or None,
        opens_at=utc_moment("opens_at", opens_at),
        daily_limit=whole_number("daily_limit", daily_limit, MAX_DAILY_LIMIT),
        team_size=whole_number("team_size", team_size, MAX_TEAM_SIZE, least=2),
        group=group or None,
        freeze_at=utc_moment("freeze_at", freeze_at),
    )
    services.admin.set_board(problem.name, settings, by=admin.name)
    return back_to(f"/admin/boards/{problem.name}")


@router.get("/workers")
def workers_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """The workers of the last day and those that are drained, and which of them are connected."""
    return render(request, "admin/workers.html", workers=list_workers(services))


@router.post("/workers/drain")
def drain_worker(
    services: ServicesDep, admin: FormAdmin, name: Annotated[PrintableText, Form()]
) -> Response:
    """Give a worker no further jobs."""
    services.admin.drain_worker(name, by=admin.name)
    return back_to("/admin/workers")


@router.post("/workers/undrain")
def undrain_worker(
    services: ServicesDep, admin: FormAdmin, name: Annotated[PrintableText, Form()]
) -> Response:
    """Give a worker jobs again."""
    services.admin.undrain_worker(name, by=admin.name)
    return back_to("/admin/workers")


@router.get("/announcements")
def announcements_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """The newest announcements, and a form to make one."""
    newest = services.announcements.newest(ANNOUNCEMENT_ROWS)
    return render(request, "admin/announcements.html", announcements=newest)


@router.post("/announcements")
def announce(
    services: ServicesDep,
    admin: FormAdmin,
    text: Annotated[str, Form(max_length=MAX_TEXT_CHARS)],
    until: Annotated[str, Form(max_length=40)],
) -> Response:
    """Show a line on the home page and on every board until a moment."""
    moment = utc_moment("until", until)
    if moment is None:
        raise Invalid("until: choose when it is no longer shown")
    services.announcements.add(text, moment, by=admin.name)
    return back_to("/admin/announcements")


@router.post("/announcements/{number}/end")
def end_announcement(services: ServicesDep, admin: FormAdmin, number: int) -> Response:
    """Show an announcement no longer."""
    services.announcements.end(number, by=admin.name)
    return back_to("/admin/announcements")


@router.get("/audit")
def audit_page(
    request: Request,
    services: ServicesDep,
    admin: AdminUser,
    before: Annotated[int | None, Query()] = None,
) -> Response:
    """What admins did, newest first."""
    acts = services.admin.audit(AUDIT_ROWS, before)
    older = acts[-1].id if len(acts) == AUDIT_ROWS else None
    return render(request, "admin/audit.html", acts=acts, older=older)
