"""Announcements: lines of admins that every reader sees until a date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, Select, insert, select, update

from grader.board.store import MAX_ID
from grader.db.engine import connect, transaction
from grader.db.tables import announcements
from grader.report import one_line
from grader.server.services import Conflict, Invalid
from grader.server.services.audit import record_action

MAX_TEXT_CHARS = 300


@dataclass(frozen=True)
class Announcement:
    """A line of an admin. Its text never changes."""

    id: int
    created_at: datetime
    by: str
    text: str
    until: datetime
    """When it is no longer shown."""


class Announcements:
    """The announcements of one database. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now

    def current(self) -> list[Announcement]:
        """Those that are shown now, newest first."""
        return self._read(_NEWEST.where(announcements.c.until > self._now()))

    def newest(self, limit: int) -> list[Announcement]:
        """The newest ones, newest first, with those that are over."""
        return self._read(_NEWEST.limit(limit))

    def add(self, text: str, until: datetime, by: str) -> None:
        """Show a line to every reader until a moment. Raises `Invalid` for an empty line, and for a
        moment that has passed."""
        text, now = one_line(text, MAX_TEXT_CHARS), self._now()
        if not text:
            raise Invalid("an announcement has a text")
        if until <= now:
            raise Invalid("until: choose a moment that has not passed")
        with transaction(self._engine, "admin") as connection:
            new = {"created_at": now, "by": by, "text": text, "until": until}
            added = connection.execute(insert(announcements).values(new))
            assert added.inserted_primary_key is not None
            number = added.inserted_primary_key[0]
            record_action(
                connection, now, by, "announce", number, f"until {until.isoformat()}: {text}"
            )

    def end(self, number: int, by: str) -> None:
        """Show an announcement no longer. Raises `Conflict` if none of this number is shown."""
        now = self._now()
        shown = (announcements.c.id == number) & (announcements.c.until > now)
        with transaction(self._engine, "admin") as connection:
            ended = update(announcements).where(shown).values(until=now)
            if not 0 < number <= MAX_ID or connection.execute(ended).rowcount == 0:
                raise Conflict(f"announcement {number} is not shown, or no longer")
            record_action(connection, now, by, "announce end", number)

    def _read(self, query: Select[tuple[object, ...]]) -> list[Announcement]:
        with connect(self._engine) as connection:
            return [Announcement(**row) for row in connection.execute(query).mappings()]


_NEWEST: Select[tuple[object, ...]] = select(announcements).order_by(announcements.c.id.desc())
