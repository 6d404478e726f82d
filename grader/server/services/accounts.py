"""Users and their tokens."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    RowMapping,
    Select,
    bindparam,
    delete,
    false,
    func,
    insert,
    or_,
    select,
    update,
)

from grader.board.store import MAX_ID
from grader.confusables import mixes_scripts, scripts, skeleton
from grader.db.engine import BoardError, connect, transaction
from grader.db.tables import group_members, groups, team_members, teams, tokens, users
from grader.report import one_line
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.audit import SERVER_ACTOR, record_action
from grader.server.services.tokens import Token, add_session, add_token, digest

Role = Literal["competitor", "worker", "admin"]

log = logging.getLogger(__name__)

USE_INTERVAL = timedelta(minutes=1)
"""The time of a token's last use is updated at most this often."""

MAX_NAME_CHARS = 40

MAX_OWN_TOKENS = 50
"""Tokens that a user may make before revoking one."""


@dataclass(frozen=True)
class User:
    """A user of the server."""

    id: int
    name: str
    role: Role
    groups: frozenset[str] = field(default=frozenset(), kw_only=True)
    """The names of the user's groups."""
    team: str | None = field(default=None, kw_only=True)
    """The name of the user's team."""

    @property
    def entry_names(self) -> tuple[str, ...]:
        """The names that entries of the user have on boards: their own and that of their team."""
        return (self.name,) if self.team is None else (self.name, self.team)


@dataclass(frozen=True)
class Banned:
    """What is found instead of a user by a valid token of one who is banned."""

    reason: str


@dataclass(frozen=True)
class Account(User):
    """A user as admins see it."""

    created_at: datetime
    banned_at: datetime | None
    banned_reason: str | None
    last_used_at: datetime | None
    """Last use of any of the user's tokens, to the minute."""


class Accounts:
    """The users of one database. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def first_admin(self) -> str | None:
        """Create the first admin. Returns a token; None if there is an admin already."""
        with transaction(self._engine, "admin") as connection:
            if connection.scalar(select(users.c.id).where(users.c.role == "admin").limit(1)):
                return None
            return self._add_user(connection, "admin", "admin", SERVER_ACTOR)

    def new_admin_token(self) -> str:
        """Create another token of the first admin, for an operator with access to the database.

        Creates the admin if there is none, and unbans it if all admins are banned.
        """
        with transaction(self._engine, "admin") as connection:
            admins = select(users).where(users.c.role == "admin")
            first = admins.order_by(users.c.banned_at.is_not(None), users.c.id).limit(1)
            admin = connection.execute(first).mappings().first()
            if admin is None:
                return self._add_user(connection, "admin", "admin", SERVER_ACTOR)
            if admin["banned_at"] is not None:
                unban = update(users).where(users.c.id == admin["id"])
                connection.execute(unban.values(banned_at=None, banned_reason=None))
                record_action(connection, self._now(), SERVER_ACTOR, "unban", admin["name"])
            token, number = self._add_token(connection, admin["id"], "way back in")
            record_action(
                connection, self._now(), SERVER_ACTOR, "token new", admin["name"], str(number)
            )
        return token

    def add_user(self, name: str, role: Role = "competitor", by: str = SERVER_ACTOR) -> str:
        """Create a user. Returns its token.

        Raises `Invalid` for an invalid name, and `Conflict` for one that is taken or looks like
        one that is.
        """
        with transaction(self._engine, "admin") as connection:
            return self._add_user(connection, name, role, by)

    def user(self, name: str) -> Account | None:
        """A user by name, ignoring case; None if there is none."""
        with connect(self._engine) as connection:
            found = connection.execute(_ACCOUNTS.where(_is_named(name))).mappings().first()
        return None if found is None else _account(found)

    def users(self) -> list[Account]:
        """Every user, sorted by name."""
        with connect(self._engine) as connection:
            rows = connection.execute(_ACCOUNTS.order_by(users.c.name_key)).mappings()
            return [_account(row) for row in rows]

    def new_own_token(self, name: str, label: str = "") -> str:
        """Create another token of a user who asks for it. Raises `Conflict` if the user has
        `MAX_OWN_TOKENS`."""
        return self.new_token(name, label, by=name, limit=MAX_OWN_TOKENS)

    def new_token(
        self, name: str, label: str = "", by: str = SERVER_ACTOR, limit: int | None = None
    ) -> str:
        """Create another token of a user. Raises `NotFound`, and `Conflict` if the user has `limit`
        that are not revoked."""
        with transaction(self._engine, "admin") as connection:
            user = find_user(connection, name)
            live = (tokens.c.kind == "api") & tokens.c.revoked_at.is_(None)
            mine = select(func.count()).where(tokens.c.user_id == user["id"], live)
            if limit is not None and int(connection.scalar(mine) or 0) >= limit:
                raise Conflict(f"you have {limit} tokens; revoke one that you do not use first")
            token, number = self._add_token(connection, user["id"], label)
            record_action(
                connection, self._now(), by, "token new", user["name"], f"{number} {label}"
            )
        return token

    def tokens(self, name: str) -> list[Token]:
        """The tokens of a user, oldest first, without sessions. Raises `NotFound`."""
        shown = (tokens.c[n] for n in ("id", "label", "created_at", "last_used_at", "revoked_at"))
        with connect(self._engine) as connection:
            user = find_user(connection, name)
            mine = (tokens.c.user_id == user["id"]) & (tokens.c.kind == "api")
            rows = connection.execute(select(*shown).where(mine).order_by(tokens.c.id))
            return [Token(**row) for row in rows.mappings()]

    def revoke(self, whose: str | int, by: str = SERVER_ACTOR, owner: str | None = None) -> int:
        """Revoke all tokens and sessions of a user by name, or one token by id with the sessions
        that it opened. Returns how many tokens and sessions ended.

        owner: the user who must own the token; None for any. Raises `NotFound`, and `Conflict` for
        the last token of an admin.
        """
        with transaction(self._engine, "admin") as connection:
            if isinstance(whose, str):
                user = find_user(connection, whose)
                chosen, subject = tokens.c.user_id == user["id"], user["name"]
            else:
                if _find_token(connection, whose, owner) is None:
                    command = "grade token list" if owner else "grade admin token list NAME"
                    raise NotFound(f"there is no token {whose}; `{command}`")
                chosen = or_(tokens.c.id == whose, tokens.c.opened_by == whose)
                subject = str(whose)
            had_one = _has_admin_token(connection)
            live = update(tokens).where(chosen, tokens.c.revoked_at.is_(None))
            ended = connection.execute(live.values(revoked_at=self._now())).rowcount
            if had_one and not _has_admin_token(connection):
                raise Conflict("that is the last token of an admin; make another one first")
            record_action(connection, self._now(), by, "token revoke", subject, f"{ended} ended")
        return ended

    def rotate(self, number: int, by: str = SERVER_ACTOR, owner: str | None = None) -> str:
        """Replace a token by a new one with the same label, and end the sessions that it opened.
        Returns the new one.

        owner: the user who must own the token; None for any. Raises `NotFound`, also for a token
        that is revoked.
        """
        with transaction(self._engine, "admin") as connection:
            row = _find_token(connection, number, owner)
            if row is None or row.revoked_at is not None:
                raise NotFound(f"there is no token {number}, or it is revoked")
            token, added = self._add_token(connection, row.user_id, row.label)
            old = or_(tokens.c.id == number, tokens.c.opened_by == number)
            ended = update(tokens).where(old, tokens.c.revoked_at.is_(None))
            connection.execute(ended.values(revoked_at=self._now()))
            record_action(connection, self._now(), by, "token rotate", number, f"now {added}")
        return token

    def whoami(self, token: str) -> User | None:
        """The user of a token or session; None if it is invalid or its user is banned."""
        found = self.users_of({token}).get(token)
        return found if isinstance(found, User) else None

    def users_of(self, wanted: Collection[str]) -> dict[str, User | Banned]:
        """The users of these tokens and sessions, by one query; none for an invalid one."""
        found = self._find_all(wanted)
        first = [rows[0] for rows in found.values()]
        self._note_use([row.id for row in first if row.is_due and not row.is_banned])
        return {token: _user(rows) for token, rows in found.items()}

    def open_session(self, token: str) -> str | Banned | None:
        """Open a web session. Returns its token for the cookie.

        None for an invalid token, and for one of a session: a session cannot open another.
        """
        row = next(iter(self._find_all({token}).get(token, [])), None)
        if row is not None and row.is_banned:
            return Banned(str(row.banned_reason))
        if row is None or row.kind != "api":
            return None
        with transaction(self._engine) as connection:
            return add_session(connection, self._now(), row.user_id, opened_by=row.id)

    def close_session(self, session: str) -> None:
        """End a session. Does nothing for other tokens."""
        mine = (tokens.c.hash == digest(session)) & (tokens.c.kind == "session")
        with transaction(self._engine) as connection:
            connection.execute(delete(tokens).where(mine))

    def _add_user(self, connection: Connection, name: str, role: Role, by: str) -> str:
        user_id = create_user(connection, self._now(), name, role, by)
        return self._add_token(connection, user_id, "first")[0]

    def _add_token(self, connection: Connection, user_id: int, label: str) -> tuple[str, int]:
        return add_token(connection, self._now(), user_id, "api", label)

    def _find_all(self, wanted: Collection[str]) -> dict[str, list[Row[Any]]]:
        """Token → its rows of `_TOKENS`, if it is neither revoked nor expired."""
        digests = {digest(token): token for token in wanted}
        now = self._now()
        values = {"hashes": list(digests), "now": now, "due": now - USE_INTERVAL}
        with connect(self._engine) as connection:
            rows = connection.execute(_TOKENS, values).all()
        found: dict[str, list[Row[Any]]] = {}
        for row in rows:
            found.setdefault(digests[row.hash], []).append(row)
        return found

    def _note_use(self, numbers: Collection[int]) -> None:
        """Store the time of the last use of tokens."""
        if not numbers:
            return
        used = update(tokens).where(tokens.c.id.in_(numbers))
        try:
            with transaction(self._engine) as connection:
                connection.execute(used.values(last_used_at=self._now()))
        except BoardError as error:  # such as a full disk, which can still be read
            log.warning("the last use of a token was not stored: %s", one_line(str(error)))


def create_user(
    connection: Connection, now: datetime, name: str, role: Role, by: str | None = None
) -> int:
    """Add a user within a transaction that holds the lock ``admin``. Returns its number.

    by: who added it; None if it signed up itself. Raises `Invalid` and `Conflict` like
    `Accounts.add_user`.
    """
    name = validate_name(name)
    key, look = check_name_is_free(connection, name)
    added = connection.execute(
        insert(users).values(name=name, name_key=key, skeleton=look, role=role, created_at=now)
    )
    assert added.inserted_primary_key is not None
    record_action(connection, now, by or name, "user add", name, role)
    return int(added.inserted_primary_key[0])


def check_name_is_free(connection: Connection, name: str) -> tuple[str, str]:
    """The key and the skeleton of a valid name for a new user or team.

    Raises `Conflict` for one that a user or a team has, and for one that looks like it. The
    caller's transaction must hold the lock ``admin``.
    """
    key, look = name_key(name), skeleton(name)
    for table, whose in ((users, "another user's"), (teams, "a team's")):
        if connection.scalar(select(table.c.id).where(table.c.name_key == key)):
            raise Conflict(f"the name {name} is taken; choose another")
        if twin := connection.scalar(select(table.c.name).where(table.c.skeleton == look)):
            raise Conflict(f"the name {name} looks like {twin}, which is {whose}; choose another")
    return key, look


def validate_name(name: str) -> str:
    """A user's name, normalized. It is shown on boards, and is part of URLs.

    Raises `Invalid` unless it is 1 to `MAX_NAME_CHARS` printable characters without slashes, in
    letters of one script.
    """
    name = unicodedata.normalize("NFC", name.strip())
    fits = 0 < len(name) <= MAX_NAME_CHARS and len(name_key(name)) <= MAX_NAME_CHARS
    look = skeleton(name)
    is_path = bool(set("/\\") & set(name + look)) or name in (".", "..")
    if not fits or not name.isprintable() or not look or is_path:
        raise Invalid(f"a name is 1 to {MAX_NAME_CHARS} printable characters without slashes")
    if mixes_scripts(name):
        mixed = " and ".join(sorted(scripts(name)))
        raise Invalid(f"a name has the letters of one script, and {name} mixes {mixed}")
    return name


def name_key(name: str) -> str:
    """The key that a user is found by: upper and lower case are alike, and so are variants."""
    return unicodedata.normalize("NFKC", name.strip()).casefold()


def worker_name(user: str, worker: str = "") -> str:
    """The full name of a user's worker. It is unambiguous, since user names have no slash.

    The part after the slash may look like that of another worker of the same user, who alone gave
    both.
    """
    return one_line(f"{user}/{worker}", 200)


def find_user(connection: Connection, name: str) -> RowMapping:
    """The row of a user. Raises `NotFound`."""
    row = connection.execute(select(users).where(_is_named(name))).mappings().first()
    if row is None:
        raise NotFound(
            f"there is no user {one_line(name, MAX_NAME_CHARS)}; `grade admin user list`"
        )
    return row


def _is_named(name: str) -> ColumnElement[bool]:
    # A database may reject even a comparison with an unprintable character.
    return users.c.name_key == name_key(name) if name.isprintable() else false()


def _find_token(connection: Connection, number: int, owner: str | None) -> Row[Any] | None:
    """The row of a token by number, of this user or of any; None also for a session."""
    if not 0 < number <= MAX_ID:
        return None
    mine = (tokens.c.id == number) & (tokens.c.kind == "api")
    if owner is not None:
        mine &= tokens.c.user_id == find_user(connection, owner)["id"]
    return connection.execute(select(tokens).where(mine)).first()


def _has_admin_token(connection: Connection) -> bool:
    live = (tokens.c.kind == "api") & tokens.c.revoked_at.is_(None)
    admin = (users.c.role == "admin") & users.c.banned_at.is_(None)
    query = select(tokens.c.id).join(users, users.c.id == tokens.c.user_id).where(live, admin)
    return connection.scalar(query.limit(1)) is not None


# It is read for every request with a token, so it has no column that takes long to convert. A user
# of several groups has a row for each, and one of none has one.
_TOKENS = (
    select(
        tokens.c.id,
        tokens.c.hash,
        tokens.c.kind,
        tokens.c.user_id,
        users.c.name,
        users.c.role,
        users.c.banned_reason,
        groups.c.name.label("group"),
        teams.c.name.label("team"),
        users.c.banned_at.is_not(None).label("is_banned"),
        or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at <= bindparam("due")).label(
            "is_due"
        ),
    )
    .join(users, users.c.id == tokens.c.user_id)
    .join(group_members, group_members.c.user_id == users.c.id, isouter=True)
    .join(groups, groups.c.id == group_members.c.group_id, isouter=True)
    .join(team_members, team_members.c.user_id == users.c.id, isouter=True)
    .join(teams, teams.c.id == team_members.c.team_id, isouter=True)
    .where(
        tokens.c.hash.in_(bindparam("hashes", expanding=True)),
        tokens.c.revoked_at.is_(None),
        or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > bindparam("now")),
    )
)
_LAST_USE = (
    select(func.max(tokens.c.last_used_at))
    .where(tokens.c.user_id == users.c.id)
    .scalar_subquery()
    .label("last_used_at")
)
_ACCOUNTS: Select[tuple[object, ...]] = select(users, _LAST_USE)


def _user(rows: list[Row[Any]]) -> User | Banned:
    """The user of the rows of one token."""
    row = rows[0]
    if row.is_banned:
        return Banned(str(row.banned_reason))
    names = frozenset(one.group for one in rows if one.group is not None)
    return User(row.user_id, row.name, row.role, groups=names, team=row.team)


def _account(row: RowMapping) -> Account:
    hidden = ("name_key", "skeleton")
    return Account(**{name: value for name, value in row.items() if name not in hidden})
