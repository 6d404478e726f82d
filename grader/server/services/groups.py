"""Groups of users. A board can be for the members of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, RowMapping, delete, insert, select

from grader.db.engine import connect, transaction
from grader.db.tables import boards, group_members, groups, invitations, users
from grader.report import one_line
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.accounts import MAX_NAME_CHARS, find_user, name_key, validate_name
from grader.server.services.audit import record_action


@dataclass(frozen=True)
class Group:
    """A group of users."""

    name: str
    created_at: datetime
    members: list[str]
    """The names of its users, sorted."""


class Groups:
    """The groups of one database. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def groups(self) -> list[Group]:
        """Every group with its members, sorted by name."""
        query = (
            select(groups.c.name, groups.c.created_at, users.c.name.label("member"))
            .join(group_members, group_members.c.group_id == groups.c.id, isouter=True)
            .join(users, users.c.id == group_members.c.user_id, isouter=True)
            .order_by(groups.c.name_key, users.c.name_key)
        )
        found: dict[str, Group] = {}
        with connect(self._engine) as connection:
            for name, created_at, member in connection.execute(query):
                group = found.setdefault(name, Group(name, created_at, []))
                group.members.extend([] if member is None else [member])
        return list(found.values())

    def add(self, name: str, by: str) -> str:
        """Make a group. Returns its name, normalized.

        Raises `Invalid` for a name that no user could have, and for ``none``, which means no group
        where a group is named; `Conflict` for one that is taken.
        """
        name = validate_name(name)
        key = name_key(name)
        if key == "none":
            raise Invalid("a group cannot be called none")
        with transaction(self._engine, "admin") as connection:
            if connection.scalar(select(groups.c.id).where(groups.c.name_key == key)):
                raise Conflict(f"there is a group {name} already")
            new = {"name": name, "name_key": key, "created_at": self._now()}
            connection.execute(insert(groups).values(new))
            record_action(connection, self._now(), by, "group add", name)
        return name

    def remove(self, name: str, by: str) -> None:
        """Remove a group, its members' membership, and its invitations.

        Raises `NotFound`, and `Conflict` while a board is for it.
        """
        with transaction(self._engine, "admin") as connection:
            group = find_group(connection, name)
            mine = select(boards.c.problem).where(boards.c.group == group["name"])
            if board := connection.scalar(mine.limit(1)):
                raise Conflict(f"the board {board} is for this group; change that first")
            for table in (group_members, invitations):
                connection.execute(delete(table).where(table.c.group_id == group["id"]))
            connection.execute(delete(groups).where(groups.c.id == group["id"]))
            record_action(connection, self._now(), by, "group remove", group["name"])

    def add_member(self, name: str, user: str, by: str) -> None:
        """Put a user into a group. Does nothing if they are in it. Raises `NotFound`."""
        with transaction(self._engine, "admin") as connection:
            group, member = find_group(connection, name), find_user(connection, user)
            if join(connection, group["id"], member["id"]):
                detail = f"in {group['name']}"
                record_action(connection, self._now(), by, "group join", member["name"], detail)

    def remove_member(self, name: str, user: str, by: str) -> None:
        """Take a user out of a group. Raises `NotFound`, also if they are not in it."""
        with transaction(self._engine, "admin") as connection:
            group, member = find_group(connection, name), find_user(connection, user)
            mine = group_members.c.user_id == member["id"]
            left = delete(group_members).where(mine, group_members.c.group_id == group["id"])
            if connection.execute(left).rowcount == 0:
                raise NotFound(f"{member['name']} is not in the group {group['name']}")
            detail = f"of {group['name']}"
            record_action(connection, self._now(), by, "group leave", member["name"], detail)


def find_group(connection: Connection, name: str) -> RowMapping:
    """The row of a group. Raises `NotFound`."""
    mine = groups.c.name_key == name_key(name)
    row = None
    if name.isprintable():  # a database may reject even a comparison with other characters
        row = connection.execute(select(groups).where(mine)).mappings().first()
    if row is None:
        shown = one_line(name, MAX_NAME_CHARS)
        raise NotFound(f"there is no group {shown}; `grade admin group list`")
    return row


def join(connection: Connection, group_id: int, user_id: int) -> bool:
    """Put a user into a group, within a transaction that holds the lock ``admin``. False if they
    are in it already."""
    member = {"user_id": user_id, "group_id": group_id}
    mine = (group_members.c.user_id == user_id) & (group_members.c.group_id == group_id)
    if connection.scalar(select(group_members.c.user_id).where(mine)) is not None:
        return False
    connection.execute(insert(group_members).values(member))
    return True
