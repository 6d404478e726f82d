"""What admins do: settings of boards, bans, deletions, held jobs, rejudges. All of it is audited.

Nothing here changes or deletes a result. What shall not count gets a row among the voids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Literal

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    bindparam,
    delete,
    insert,
    literal,
    select,
    update,
)

from grader.db.engine import connect, transaction
from grader.db.tables import UtcDateTime, boards, jobs, results, submissions, users, voids
from grader.fleet import job_updates
from grader.fleet.job_queries import is_valid_id
from grader.report import one_line
from grader.server.services.accounts import known_user, worker_name
from grader.server.services.audit import Act, acts, note
from grader.server.services.errors import Conflict
from grader.server.services.rejudge import Rejudges

REASON_CHARS = 300


@dataclass(frozen=True)
class BoardSettings:
    """How a problem's board is run."""

    deadline: datetime | None = None
    """Until when one may submit; before it, others' submissions show nothing but their state."""
    hidden: bool = False
    """Whether only admins see the board."""
    publish_sources: bool = False
    """Whether everyone may read sources, after the deadline if there is one."""
    note: str | None = None
    """One line for competitors."""


class Office:
    """The office of one database. Every method raises `BoardError` when it cannot be used."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now
        self.rejudges = Rejudges(engine, now)

    def board(self, problem: str) -> BoardSettings:
        """The settings of a problem's board; the defaults when nobody has set any."""
        with connect(self._engine) as connection:
            row = connection.execute(_BOARD, {"name": problem}).mappings().first()
        return BoardSettings() if row is None else BoardSettings(**row)

    def boards(self) -> dict[str, BoardSettings]:
        """The settings of those boards for which there are any, by problem."""
        with connect(self._engine) as connection:
            rows = connection.execute(select(boards)).mappings().all()
        names = [field.name for field in fields(BoardSettings)]
        return {row["problem"]: BoardSettings(**{n: row[n] for n in names}) for row in rows}

    def set_board(self, problem: str, settings: BoardSettings, by: str) -> BoardSettings:
        """Give a board these settings, all of them."""
        if settings.note is not None:
            settings = replace(settings, note=one_line(settings.note, REASON_CHARS) or None)
        values = asdict(settings)
        with transaction(self._engine, "admin") as connection:
            known = update(boards).where(boards.c.problem == problem).values(values)
            if connection.execute(known).rowcount == 0:
                connection.execute(insert(boards).values(problem=problem, **values))
            told = ", ".join(f"{name} {value}" for name, value in values.items())
            note(connection, self._now(), by, "board set", problem, told)
        return settings

    def ban(self, name: str, reason: str, by: str) -> None:
        """Shut a user out, end what he has in flight, take his results off the boards, and queue
        again what his workers have.

        Banning again also reaches what has come in since. Raises `NotThere`, and `Conflict` for
        oneself.
        """
        now = self._now()
        with transaction(self._engine, "admin") as connection:
            user = known_user(connection, name)
            if user["name"] == by:
                raise Conflict("you cannot ban yourself")
            connection.execute(
                update(users)
                .where(users.c.id == user["id"])
                .values(banned_at=now, banned_reason=one_line(reason, REASON_CHARS))
            )
            # Jobs before results: a job that finishes meanwhile is either cancelled here, or its
            # result is there to be voided.
            cancelled = job_updates.cancel_all_of_user(connection, user["name"], by, now)
            requeued = job_updates.requeue_from_workers(connection, worker_name(user["name"]), now)
            banned = select(voids.c.result_id).where(voids.c.why == "banned")
            theirs = select(
                results.c.id, literal("banned"), literal(now, UtcDateTime), literal(by)
            ).where(results.c.user == user["name"], results.c.id.not_in(banned))
            added = insert(voids).from_select(_VOID, theirs).returning(voids.c.result_id)
            voided = len(connection.execute(added).all())
            detail = f"{reason}; {cancelled} jobs cancelled, {voided} results off the boards"
            detail += f", {requeued} jobs taken from workers" if requeued else ""
            note(connection, now, by, "ban", user["name"], detail)

    def unban(self, name: str, by: str) -> None:
        """Let a user in again, and his results count again. Raises `NotThere` and `Conflict`."""
        with transaction(self._engine, "admin") as connection:
            user = known_user(connection, name)
            if user["banned_at"] is None:
                raise Conflict(f"{user['name']} is not banned")
            connection.execute(
                update(users)
                .where(users.c.id == user["id"])
                .values(banned_at=None, banned_reason=None)
            )
            theirs = select(results.c.id).where(results.c.user == user["name"])
            back = delete(voids).where(voids.c.why == "banned", voids.c.result_id.in_(theirs))
            count = connection.execute(back).rowcount
            told = f"{count} results back on the boards"
            note(connection, self._now(), by, "unban", user["name"], told)

    def release(self, submission_id: int, by: str) -> bool:
        """Queue a held job again, its failures and deaths forgotten. False when it is not held."""
        with transaction(self._engine, "admin") as connection:
            if not job_updates.release_held(connection, submission_id, self._now()):
                return False
            note(connection, self._now(), by, "release", submission_id)
        return True

    def cancel(self, submission_id: int, by: str) -> bool:
        """Cancel an unfinished submission. False if there is none."""
        with transaction(self._engine, "admin") as connection:
            return self._cancel(connection, submission_id, by)

    def delete(self, submission_id: int, by: str) -> Literal["cancelled", "deleted"] | None:
        """Cancel an unfinished submission, or take the result of a done one off the board and out
        of everyone's sight, with those by which rejudges have replaced it. None when there is
        nothing to delete (any more)."""
        if not is_valid_id(submission_id):
            return None
        with transaction(self._engine, "admin") as connection:
            if self._cancel(connection, submission_id, by):
                return "cancelled"
            deleted = select(voids.c.result_id).where(voids.c.why == "deleted")
            found = select(jobs.c.submission_id, jobs.c.result_id).where(
                jobs.c.submission_id.in_(_with_later(submission_id)),
                jobs.c.result_id.is_not(None),
                jobs.c.result_id.not_in(deleted),
            )
            numbers = {row[0]: row[1] for row in connection.execute(found)}
            if submission_id not in numbers:
                return None
            now = self._now()
            values = {"why": "deleted", "at": now, "by": by}
            connection.execute(
                insert(voids), [{"result_id": number} | values for number in numbers.values()]
            )
            note(connection, now, by, "delete", submission_id)
        return "deleted"

    def _cancel(self, connection: Connection, submission_id: int, by: str) -> bool:
        if not job_updates.cancel_job(connection, submission_id, by, self._now()):
            return False
        note(connection, self._now(), by, "cancel", submission_id)
        return True

    def voided(self, result_ids: Collection[int]) -> dict[int, frozenset[str]]:
        """Those of these results that do not count → why: ``rejudged``, ``preview``, ``deleted``,
        ``banned``."""
        query = select(voids.c.result_id, voids.c.why).where(voids.c.result_id.in_(result_ids))
        found: dict[int, set[str]] = {}
        with connect(self._engine) as connection:
            for number, why in connection.execute(query):
                found.setdefault(number, set()).add(why)
        return {number: frozenset(reasons) for number, reasons in found.items()}

    def audit(self, limit: int = 100, before: int | None = None) -> list[Act]:
        """What was done, newest first; `before` is the number to go on below."""
        return acts(self._engine, limit, before)


_BOARD = select(boards.c.deadline, boards.c.hidden, boards.c.publish_sources, boards.c.note).where(
    boards.c.problem == bindparam("name")
)
_VOID = ["result_id", "why", "at", "by"]


def _with_later(submission_id: int) -> Select[int]:
    """A submission's number, and those of the submissions that rejudges have made of it."""
    line = select(submissions.c.id).where(submissions.c.id == submission_id).cte(recursive=True)
    later = select(submissions.c.id).join(line, submissions.c.original_id == line.c.id)
    return select(line.union(later).c.id)
