"""How tokens and sessions are made and stored.

A token is 256 random bits. Only its SHA-256 is stored; a slow hash would add nothing, since 256
bits cannot be guessed. The token itself is shown once, when it is created.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import Connection, delete, insert

from grader.db.tables import tokens
from grader.report import one_line

SESSION_LIFETIME = timedelta(hours=12)
"""Lifetime of a web session."""

MAX_LABEL_CHARS = 80


@dataclass(frozen=True)
class Token:
    """A token as its user and admins see it: without its secret."""

    id: int
    label: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


def new_code() -> str:
    """A code to hand to others, of 128 random bits. It is typed as an argument of a command, so it
    has no hyphen, which would begin an option."""
    return secrets.token_hex(16)


def digest(secret: str) -> str:
    """What is stored of a secret of 128 random bits or more."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def add_token(
    connection: Connection,
    now: datetime,
    user_id: int,
    kind: Literal["api", "session"],
    label: str,
    *,
    opened_by: int | None = None,
    expires_at: datetime | None = None,
) -> tuple[str, int]:
    """Store a new token of a user. Returns it and its number."""
    token = f"grade_{secrets.token_urlsafe(32)}"
    added = connection.execute(
        insert(tokens).values(
            user_id=user_id,
            kind=kind,
            hash=digest(token),
            label=one_line(label, MAX_LABEL_CHARS),
            opened_by=opened_by,
            created_at=now,
            expires_at=expires_at,
        )
    )
    assert added.inserted_primary_key is not None
    return token, int(added.inserted_primary_key[0])


def add_session(
    connection: Connection, now: datetime, user_id: int, *, opened_by: int | None = None
) -> str:
    """Open a web session of a user, and forget those that have expired. Returns its token.

    opened_by: the number of the token that opens it; None if its user signed in elsewhere.
    """
    expired = (tokens.c.kind == "session") & (tokens.c.expires_at < now)
    connection.execute(delete(tokens).where(expired))
    session, _ = add_token(
        connection,
        now,
        user_id,
        "session",
        "pages",
        opened_by=opened_by,
        expires_at=now + SESSION_LIFETIME,
    )
    return session
