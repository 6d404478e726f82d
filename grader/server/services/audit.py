"""The audit log of admin actions. Rows are only ever added."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, insert, select

from grader.board.store import MAX_ID
from grader.db.engine import connect
from grader.db.tables import audit
from grader.report import one_line

SERVER_ACTOR = "server"
"""The actor of what the server does itself."""


@dataclass(frozen=True)
class AuditEntry:
    """One action."""

    id: int
    at: datetime
    actor: str
    """Name of the admin, or ``server``."""
    action: str
    subject: str
    """The user, submission or problem that it changed."""
    detail: str


def record_action(
    connection: Connection, at: datetime, actor: str, action: str, subject: object, detail: str = ""
) -> None:
    """Add an entry within the transaction of the action, so that both happen or neither."""
    connection.execute(
        insert(audit).values(
            at=at,
            actor=actor,
            action=action,
            subject=one_line(str(subject), 200),
            detail=one_line(detail, 2000),
        )
    )


def audit_entries(engine: Engine, limit: int, before: int | None = None) -> list[AuditEntry]:
    """The newest entries, newest first. `before` limits them to lower ids, for paging."""
    query = select(audit).order_by(audit.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(audit.c.id < max(0, min(before, MAX_ID)))
    with connect(engine) as connection:
        return [AuditEntry(**row) for row in connection.execute(query).mappings()]
