"""The admins' page of groups and invitations. A code is shown once, in the answer to the form that
made it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.http.fields import PrintableText
from grader.server.pages.admin_forms import FormAdmin, back_to, utc_moment
from grader.server.pages.templates import render

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/groups")
def groups_page(request: Request, services: ServicesDep, admin: AdminUser) -> Response:
    """Every group and invitation, and forms to make them."""
    return render(
        request,
        "admin/groups.html",
        groups=services.groups.groups(),
        invitations=services.invitations.invitations(),
    )


@router.post("/groups")
def add_group(
    services: ServicesDep, admin: FormAdmin, name: Annotated[PrintableText, Form()]
) -> Response:
    """Make a group."""
    services.groups.add(name, by=admin.name)
    return back_to("/admin/groups")


@router.post("/groups/{name}/delete")
def remove_group(services: ServicesDep, admin: FormAdmin, name: str) -> Response:
    """Remove a group and its invitations."""
    services.groups.remove(name, by=admin.name)
    return back_to("/admin/groups")


@router.post("/groups/{name}/add")
def add_member(
    services: ServicesDep, admin: FormAdmin, name: str, user: Annotated[PrintableText, Form()]
) -> Response:
    """Put a user into a group."""
    services.groups.add_member(name, user, by=admin.name)
    return back_to("/admin/groups")


@router.post("/groups/{name}/remove")
def remove_member(
    services: ServicesDep, admin: FormAdmin, name: str, user: Annotated[PrintableText, Form()]
) -> Response:
    """Take a user out of a group."""
    services.groups.remove_member(name, user, by=admin.name)
    return back_to("/admin/groups")


@router.post("/invitations")
def add_invitation(
    request: Request,
    services: ServicesDep,
    admin: FormAdmin,
    group: Annotated[PrintableText, Form()] = "",
    uses: Annotated[int, Form()] = 1,
    until: Annotated[str, Form(max_length=40)] = "",
) -> Response:
    """Make an invitation, and show its address."""
    code = services.invitations.add(group or None, uses, utc_moment("until", until), by=admin.name)
    address = str(request.url_for("join_page", code=code))
    return render(request, "admin/invitation.html", address=address)


@router.post("/invitations/{number}/revoke")
def revoke_invitation(services: ServicesDep, admin: FormAdmin, number: int) -> Response:
    """End an invitation."""
    services.invitations.revoke(number, by=admin.name)
    return back_to("/admin/groups")
