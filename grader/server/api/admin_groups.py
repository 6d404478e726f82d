"""The admins' API of groups and invitations, which `grade admin group` and `invite` call."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from grader.server.api.admin_schemas import (
    GroupList,
    InvitationList,
    NewCode,
    NewGroup,
    NewInvitation,
)
from grader.server.http.auth import AdminUser, ServicesDep
from grader.server.http.errors import error_responses
from grader.server.http.fields import PrintableText

router = APIRouter(prefix="/admin", tags=["admin"])

GroupName = Annotated[PrintableText, Path(description="A group's name, in any case.")]
UserName = Annotated[PrintableText, Path(description="A user's name, upper and lower case alike.")]
Number = Annotated[int, Path(description="Its number.")]


@router.get(
    "/groups", response_model=GroupList, responses=error_responses(), summary="List the groups"
)
def list_groups(services: ServicesDep, admin: AdminUser) -> GroupList:
    """Every group with its members."""
    return GroupList(groups=services.groups.groups())


@router.post("/groups", status_code=204, responses=error_responses(409), summary="Make a group")
def add_group(services: ServicesDep, admin: AdminUser, new: NewGroup) -> None:
    """It has no members yet."""
    services.groups.add(new.name, by=admin.name)


@router.delete(
    "/groups/{group}",
    status_code=204,
    responses=error_responses(404, 409),
    summary="Remove a group",
)
def remove_group(services: ServicesDep, admin: AdminUser, group: GroupName) -> None:
    """Its invitations go with it. Refused while a board is for it."""
    services.groups.remove(group, by=admin.name)


@router.put(
    "/groups/{group}/members/{name}",
    status_code=204,
    responses=error_responses(404),
    summary="Put a user into a group",
)
def add_member(services: ServicesDep, admin: AdminUser, group: GroupName, name: UserName) -> None:
    """The user sees the group's boards from the next request on."""
    services.groups.add_member(group, name, by=admin.name)


@router.delete(
    "/groups/{group}/members/{name}",
    status_code=204,
    responses=error_responses(404),
    summary="Take a user out of a group",
)
def remove_member(
    services: ServicesDep, admin: AdminUser, group: GroupName, name: UserName
) -> None:
    """The user no longer sees the group's boards; their results stay."""
    services.groups.remove_member(group, name, by=admin.name)


@router.get(
    "/invitations",
    response_model=InvitationList,
    responses=error_responses(),
    summary="List the invitations",
)
def list_invitations(services: ServicesDep, admin: AdminUser) -> InvitationList:
    """Newest first, without their codes."""
    return InvitationList(invitations=services.invitations.invitations())


@router.post(
    "/invitations",
    status_code=201,
    response_model=NewCode,
    responses=error_responses(404),
    summary="Make an invitation",
)
def add_invitation(
    request: Request, services: ServicesDep, admin: AdminUser, new: NewInvitation
) -> NewCode:
    """The code is shown only in this answer."""
    code = services.invitations.add(new.group, new.uses, new.until, by=admin.name)
    return NewCode(code=code, url=str(request.url_for("join_page", code=code)))


@router.delete(
    "/invitations/{number}",
    status_code=204,
    responses=error_responses(404),
    summary="Revoke an invitation",
)
def revoke_invitation(services: ServicesDep, admin: AdminUser, number: Number) -> None:
    """Those who have used it stay users."""
    services.invitations.revoke(number, by=admin.name)
