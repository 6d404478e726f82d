"""Sign-in by an account of another site: which user it belongs to, and sign-ins in progress.

An account is found by its provider's address and the provider's own identifier of the person. Names
and e-mail addresses there may be changed, and are never compared.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, delete, func, insert, select, update

from grader.board.store import MAX_ID
from grader.db.engine import connect, transaction
from grader.db.tables import identities, sign_ins, tokens, users
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.accounts import Banned, create_user, find_user
from grader.server.services.audit import record_action
from grader.server.services.invitations import redeem
from grader.server.services.tokens import add_session, digest

SIGN_IN_LIFETIME = timedelta(minutes=10)
"""How long a sign-in may take, from the first page to the choice of a name."""

MAX_SUBJECT_CHARS = 255

EXPIRED = "this sign-in has expired, or began in another browser; begin again"


@dataclass(frozen=True)
class Person:
    """A person as a provider names them."""

    provider: str
    """The provider's address, such as ``https://github.com``."""
    subject: str
    """The provider's identifier of the person, which never changes."""
    suggested_name: str = ""


@dataclass(frozen=True)
class SignIn:
    """A sign-in in progress."""

    provider: str
    """The provider's name in the settings."""
    user_id: int | None
    """The user who links an account to theirs; None for a sign-in."""
    details: dict[str, Any]


@dataclass(frozen=True)
class Identity:
    """An account of another site that a user signs in with."""

    id: int
    provider: str
    subject: str
    created_at: datetime


class SignIns:
    """The sign-ins of one database. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def begin(self, provider: str, details: dict[str, Any], user_id: int | None = None) -> str:
        """Note a sign-in whose provider is asked next. Returns the secret for the cookie.

        user_id: the user who links the account; None to sign in.
        """
        with transaction(self._engine) as connection:
            return self._add(connection, provider=provider, details=details, user_id=user_id)

    def take(self, secret: str, provider: str, state: str) -> SignIn:
        """The sign-in that a provider answers. It is used up, whatever comes of it.

        Raises `Invalid` if there is none of this secret, provider and state.
        """
        with transaction(self._engine) as connection:
            mine = self._is_open(secret) & sign_ins.c.subject.is_(None)
            columns = (sign_ins.c.provider, sign_ins.c.user_id, sign_ins.c.details)
            used = delete(sign_ins).where(mine, sign_ins.c.provider == provider)
            row = connection.execute(used.returning(*columns)).mappings().first()
        if row is None or not hmac.compare_digest(row["details"]["state"].encode(), state.encode()):
            raise Invalid(EXPIRED)
        return SignIn(**row)

    def open_session(self, person: Person) -> str | Banned | None:
        """Open a web session of the user of an account. None if no user has it."""
        with transaction(self._engine) as connection:
            query = (
                select(users.c.id, users.c.banned_at, users.c.banned_reason)
                .join(identities, identities.c.user_id == users.c.id)
                .where(_is(person))
            )
            user = connection.execute(query).first()
            if user is None:
                return None
            if user.banned_at is not None:
                return Banned(str(user.banned_reason))
            return add_session(connection, self._now(), user.id)

    def await_name(self, provider: str, person: Person, to: str) -> str:
        """Note that a person is known who has yet to choose a name. Returns the secret for the
        cookie. `to` is the page to show afterwards."""
        details = {"address": person.provider, "name": person.suggested_name, "to": to}
        with transaction(self._engine) as connection:
            return self._add(connection, provider=provider, details=details, subject=person.subject)

    def awaited(self, secret: str) -> SignIn:
        """The sign-in of a person who has yet to choose a name. Raises `Invalid` without one."""
        columns = (sign_ins.c.provider, sign_ins.c.user_id, sign_ins.c.details)
        mine = self._is_open(secret) & sign_ins.c.subject.is_not(None)
        with connect(self._engine) as connection:
            row = connection.execute(select(*columns).where(mine)).mappings().first()
        if row is None:
            raise Invalid(EXPIRED)
        return SignIn(**row)

    def sign_up(self, secret: str, name: str, code: str = "") -> str:
        """Create a competitor for the person of `await_name`. Returns a web session.

        code: an invitation to use; empty for none. Raises `Invalid` and `Conflict`: for the name
        like `Accounts.add_user`, for a code that cannot be used, and if the sign-in has expired.
        """
        with transaction(self._engine, "admin") as connection:
            mine = self._is_open(secret) & sign_ins.c.subject.is_not(None)
            used = delete(sign_ins).where(mine).returning(sign_ins.c.subject, sign_ins.c.details)
            row = connection.execute(used).first()
            if row is None:
                raise Invalid(EXPIRED)
            user_id = create_user(connection, self._now(), name, "competitor")
            if code:
                redeem(connection, self._now(), code, user_id)
            self._link(connection, user_id, Person(row.details["address"], row.subject))
            return add_session(connection, self._now(), user_id)

    def link(self, user_id: int, person: Person) -> Banned | None:
        """Let a user sign in with an account. Raises `Conflict` if it is linked already."""
        with transaction(self._engine, "admin") as connection:
            user = connection.execute(select(users).where(users.c.id == user_id)).one()
            if user.banned_at is not None:
                return Banned(str(user.banned_reason))
            self._link(connection, user_id, person)
        return None

    def link_by_admin(self, name: str, person: Person, by: str) -> None:
        """Let the user `name` sign in with an account. Raises `NotFound`, `Conflict`, and `Invalid`
        for an identifier that no provider has."""
        if not is_subject(person.subject):
            raise Invalid(f"subject: write 1 to {MAX_SUBJECT_CHARS} printable characters")
        with transaction(self._engine, "admin") as connection:
            self._link(connection, find_user(connection, name)["id"], person, by)

    def identities(self, name: str) -> list[Identity]:
        """The accounts that a user signs in with, oldest first. Raises `NotFound`."""
        columns = (identities.c[n] for n in ("id", "provider", "subject", "created_at"))
        with connect(self._engine) as connection:
            user = find_user(connection, name)
            mine = select(*columns).where(identities.c.user_id == user["id"])
            rows = connection.execute(mine.order_by(identities.c.id)).mappings()
            return [Identity(**row) for row in rows]

    def unlink(self, name: str, number: int, by: str) -> None:
        """Let a user no longer sign in with an account, and end the sessions that sign-ins opened.

        Raises `NotFound`, and `Conflict` if the user has neither a token nor another account.
        """
        with transaction(self._engine, "admin") as connection:
            user = find_user(connection, name)
            mine = identities.c.user_id == user["id"]
            one = mine & (identities.c.id == number)
            removed = delete(identities).where(one).returning(identities.c.provider)
            provider = connection.scalar(removed) if 0 < number <= MAX_ID else None
            if provider is None:
                raise NotFound(f"{user['name']} has no linked account {number}")
            theirs, now = tokens.c.user_id == user["id"], self._now()
            live = theirs & tokens.c.revoked_at.is_(None)
            others = select(func.count()).select_from(identities).where(mine)
            keys = select(func.count()).select_from(tokens).where(live, tokens.c.kind == "api")
            if not connection.scalar(others) and not connection.scalar(keys):
                raise Conflict("that is the last way to log in; make a token first")
            opened = live & (tokens.c.kind == "session") & tokens.c.opened_by.is_(None)
            connection.execute(update(tokens).where(opened).values(revoked_at=now))
            record_action(connection, now, by, "identity unlink", user["name"], provider)

    def _add(self, connection: Connection, **values: Any) -> str:
        """Store a sign-in, and forget those that have expired. Returns its secret."""
        secret, now = secrets.token_urlsafe(32), self._now()
        connection.execute(delete(sign_ins).where(sign_ins.c.expires_at < now))
        end = now + SIGN_IN_LIFETIME
        connection.execute(insert(sign_ins).values(hash=digest(secret), expires_at=end, **values))
        return secret

    def _is_open(self, secret: str) -> ColumnElement[bool]:
        return (sign_ins.c.hash == digest(secret)) & (sign_ins.c.expires_at > self._now())

    def _link(
        self, connection: Connection, user_id: int, person: Person, by: str | None = None
    ) -> None:
        owner = select(identities.c.user_id).where(_is(person))
        if connection.scalar(owner) is not None:
            raise Conflict("this account is linked to a user already; unlink it there first")
        name = connection.scalar(select(users.c.name).where(users.c.id == user_id))
        connection.execute(
            insert(identities).values(
                user_id=user_id,
                provider=person.provider,
                subject=person.subject,
                created_at=self._now(),
            )
        )
        detail = f"{person.provider} {person.subject}"
        record_action(connection, self._now(), by or str(name), "identity link", str(name), detail)


def is_subject(text: object) -> bool:
    """Whether a provider's identifier of a person can be stored."""
    return isinstance(text, str) and 0 < len(text) <= MAX_SUBJECT_CHARS and text.isprintable()


def _is(person: Person) -> ColumnElement[bool]:
    provider = identities.c.provider == person.provider
    return provider & (identities.c.subject == person.subject)
