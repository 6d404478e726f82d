"""The admins' pages of problems: what differs in the server's folder, with the reload that takes
it, and sources on a board that are alike."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse

from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.pages.admin_forms import FormAdmin, back_to, problem_named
from grader.server.pages.templates import render
from grader.server.services.similarity import LEAST, MAX_SOURCES, similar_sources

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/problems")
def problems_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """What a reload would change, and how far the last one is."""
    reload = services.reload
    return render(
        request,
        "admin/problems.html",
        folder=reload.folder,
        changes=reload.preview() if reload.folder is not None else [],
        run=reload.last,
    )


@router.post("/problems/reload")
def start_reload(services: ServicesDep, admin: FormAdmin) -> Response:
    """Verify all that has changed, and take what holds."""
    services.reload.start(admin.name)
    return back_to("/admin/problems")


@router.get("/similar/{name}")
def similar_page(
    request: Request,
    services: ServicesDep,
    admin: AdminUser,
    name: str,
    least: Annotated[float, Query(alias="min", ge=0.1, le=1)] = LEAST,
) -> Response:
    """Pairs of different users' sources that are alike, best match first."""
    problem = problem_named(services, admin, name)
    return render(
        request,
        "admin/similar.html",
        problem=problem,
        report=similar_sources(services, problem, least),
        least=least,
        most=MAX_SOURCES,
    )
