"""The audit: what admins did, when, and to what. Rows are only ever added."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, insert, select

from grader.board.store import MAX_ID
from grader.db.engine import connect
from grader.db.tables import audit
from grader.report import one_line

SERVER = "server"
"""The actor where nobody asked: the server itself."""


@dataclass(frozen=True)
class Act:
    """One thing that was done."""

    id: int
    at: datetime
    actor: str
    """Name of the admin, or ``server``."""
    action: str
    subject: str
    """Whom or what it was done to."""
    detail: str


def note(
    connection: Connection, at: datetime, actor: str, action: str, subject: object, detail: str = ""
) -> None:
    """Add a row within the transaction that does what it tells of: both come to be, or neither."""
    connection.execute(
        insert(audit).values(
            at=at,
            actor=actor,
            action=action,
            subject=one_line(str(subject), 200),
            detail=one_line(detail, 2000),
        )
    )


def acts(engine: Engine, limit: int, before: int | None = None) -> list[Act]:
    """The newest rows, newest first; `before` is the number to go on below."""
    query = select(audit).order_by(audit.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(audit.c.id < max(0, min(before, MAX_ID)))
    with connect(engine) as connection:
        return [Act(**row) for row in connection.execute(query).mappings()]
