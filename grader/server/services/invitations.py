"""Invitations: codes with which people make an account or join a group.

A code is 128 random bits, shown once. Only its SHA-256 is stored and looked up, so the time of a
look-up says nothing about the codes that exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Engine, Row, insert, or_, select, update

from grader.board.store import MAX_ID
from grader.db.engine import connect, transaction
from grader.db.tables import groups, invitations, users
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.accounts import User, create_user
from grader.server.services.audit import record_action
from grader.server.services.groups import find_group, join
from grader.server.services.tokens import add_session, add_token, digest, new_code

MAX_USES = 100_000

NOT_VALID = "this invitation is not valid, or no longer; ask who gave it to you for another one"


@dataclass(frozen=True)
class Invitation:
    """An invitation as admins see it: without its code."""

    id: int
    group: str | None
    uses: int
    """How many people may use it."""
    used: int
    until: datetime | None
    """When it ends; None for never."""
    created_at: datetime
    by: str
    revoked_at: datetime | None


class Invitations:
    """The invitations of one database. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def add(self, group: str | None, uses: int, until: datetime | None, by: str) -> str:
        """Make an invitation. Returns its code.

        Raises `NotFound` for a group that does not exist, and `Invalid` for a number of uses or a
        moment that cannot be.
        """
        now, code = self._now(), new_code()
        if not 0 < uses <= MAX_USES:
            raise Invalid(f"uses: choose 1 to {MAX_USES:,}")
        if until is not None and until <= now:
            raise Invalid("until: choose a moment that has not passed")
        with transaction(self._engine, "admin") as connection:
            found = None if group is None else find_group(connection, group)
            added = connection.execute(
                insert(invitations).values(
                    hash=digest(code),
                    group_id=None if found is None else found["id"],
                    uses=uses,
                    used=0,
                    until=until,
                    created_at=now,
                    by=by,
                )
            )
            assert added.inserted_primary_key is not None
            detail = f"{uses} uses" + (f", group {found['name']}" if found else "")
            number = added.inserted_primary_key[0]
            record_action(connection, now, by, "invite new", number, detail)
        return code

    def invitations(self) -> list[Invitation]:
        """Every invitation, newest first."""
        with connect(self._engine) as connection:
            rows = connection.execute(_INVITATIONS.order_by(invitations.c.id.desc())).mappings()
            return [Invitation(**row) for row in rows]

    def revoke(self, number: int, by: str) -> None:
        """End an invitation; who has used it stays. Raises `NotFound`, also if it was revoked."""
        live = (invitations.c.id == number) & invitations.c.revoked_at.is_(None)
        with transaction(self._engine, "admin") as connection:
            ended = update(invitations).where(live).values(revoked_at=self._now())
            if not 0 < number <= MAX_ID or connection.execute(ended).rowcount == 0:
                raise NotFound(f"there is no invitation {number}, or it is revoked")
            record_action(connection, self._now(), by, "invite revoke", number)

    def find(self, code: str) -> Invitation:
        """The invitation of a code. Raises `Invalid` if it cannot be used."""
        with connect(self._engine) as connection:
            query = _INVITATIONS.where(_is_usable(code, self._now()))
            row = connection.execute(query).mappings().first()
        if row is None:
            raise Invalid(NOT_VALID)
        return Invitation(**row)

    def sign_up(self, code: str, name: str) -> tuple[str, str]:
        """Create a competitor by an invitation. Returns their first token, and a web session.

        Raises `Invalid` for a code that cannot be used, and like `Accounts.add_user`.
        """
        now = self._now()
        with transaction(self._engine, "admin") as connection:
            user_id = create_user(connection, now, name, "competitor")
            redeem(connection, now, code, user_id)
            token, number = add_token(connection, now, user_id, "api", "first")
            return token, add_session(connection, now, user_id, opened_by=number)

    def join(self, code: str, user: User) -> None:
        """Put a user into the group of an invitation.

        Raises `Invalid` for a code that cannot be used, and `Conflict` for one without a group, and
        for a user who is in it: neither uses the code.
        """
        with transaction(self._engine, "admin") as connection:
            if redeem(connection, self._now(), code, user.id) is None:
                raise Conflict("this invitation is for a new account, and you have one")


def redeem(connection: Connection, now: datetime, code: str, user_id: int) -> str | None:
    """Use a code for a user, within a transaction that holds the lock ``admin``. Returns the name
    of the group that they joined; None for a code without a group.

    Raises `Invalid` for a code that cannot be used, and `Conflict` for a user who is in its group.
    """
    used = update(invitations).where(_is_usable(code, now)).values(used=invitations.c.used + 1)
    returning = used.returning(invitations.c.id, invitations.c.group_id)
    row: Row[tuple[int, int | None]] | None = connection.execute(returning).first()
    if row is None:
        raise Invalid(NOT_VALID)
    group = None
    if row.group_id is not None:
        group = connection.scalar(select(groups.c.name).where(groups.c.id == row.group_id))
        if not join(connection, row.group_id, user_id):
            raise Conflict(f"you are in the group {group} already")
    detail = f"invitation {row.id}" + (f", group {group}" if group else "")
    name = str(connection.scalar(select(users.c.name).where(users.c.id == user_id)))
    record_action(connection, now, name, "invite use", name, detail)
    return group


def _is_usable(code: str, now: datetime) -> ColumnElement[bool]:
    return (
        (invitations.c.hash == digest(code))
        & invitations.c.revoked_at.is_(None)
        & (invitations.c.used < invitations.c.uses)
        & or_(invitations.c.until.is_(None), invitations.c.until > now)
    )


_INVITATIONS = select(
    invitations.c.id,
    groups.c.name.label("group"),
    invitations.c.uses,
    invitations.c.used,
    invitations.c.until,
    invitations.c.created_at,
    invitations.c.by,
    invitations.c.revoked_at,
).join(groups, groups.c.id == invitations.c.group_id, isouter=True)
