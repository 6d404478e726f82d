"""The admins' page of problems: what differs in the server's folder, and its reload."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.pages.admin_forms import FormAdmin, back_to
from grader.server.pages.templates import render

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
