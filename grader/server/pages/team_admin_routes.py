"""The admins' page of teams."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.http.fields import PrintableText
from grader.server.pages.admin_forms import FormAdmin, back_to
from grader.server.pages.templates import render

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/teams")
def teams_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """Every team with its members."""
    return render(request, "admin/teams.html", teams=services.teams.teams())


@router.post("/teams/{name}/delete")
def remove_team(services: ServicesDep, admin: FormAdmin, name: str) -> Response:
    """Delete a team that has no submissions."""
    services.teams.remove(name, by=admin.name)
    return back_to("/admin/teams")


@router.post("/teams/{name}/add")
def add_member(
    services: ServicesDep, admin: FormAdmin, name: str, user: Annotated[PrintableText, Form()]
) -> Response:
    """Put a user into a team."""
    services.teams.add_member(name, user, by=admin.name)
    return back_to("/admin/teams")


@router.post("/teams/{name}/remove")
def remove_member(
    services: ServicesDep, admin: FormAdmin, name: str, user: Annotated[PrintableText, Form()]
) -> Response:
    """Take a user out of a team."""
    services.teams.remove_member(name, user, by=admin.name)
    return back_to("/admin/teams")
