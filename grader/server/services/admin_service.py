"""The actions of admins: board settings, bans, deletions, held jobs and rejudges, all audited.

No action changes or deletes a result. A result that must not count gets a row in `voids`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    true,
    update,
)

from grader.board.store import not_void
from grader.db.engine import acquire_lock, connect, transaction
from grader.db.tables import (
    UtcDateTime,
    announcements,
    boards,
    jobs,
    results,
    submissions,
    users,
    voids,
    workers,
)
from grader.fleet import batch_updates, job_updates
from grader.fleet.job_queries import is_valid_id
from grader.fleet.ledger import ROOFLINE
from grader.report import one_line
from grader.server.services import Conflict, NotFound
from grader.server.services.accounts import find_user, worker_name
from grader.server.services.audit import AuditEntry, audit_entries, record_action
from grader.server.services.groups import find_group
from grader.server.services.rejudge import RejudgeService
from grader.server.services.submission_queries import VERSION

MAX_REASON_CHARS = 300

MAX_DAILY_LIMIT = 100_000
"""The largest daily limit of a board."""

MAX_TEAM_SIZE = 1000
"""The largest team that a board can take."""


@dataclass(frozen=True)
class BoardSettings:
    """The settings of a problem's board."""

    deadline: datetime | None = None
    """The end of submissions. Until then, others' submissions show only their state."""
    hidden: bool = False
    """Whether only admins can see the board."""
    publish_sources: bool = False
    """Whether everyone can read sources, after the deadline if there is one."""
    note: str | None = None
    """One line shown to competitors."""
    opens_at: datetime | None = None
    """Until then, only admins can see the board; None if it is open."""
    daily_limit: int | None = None
    """The most submissions of a user within 24 hours; None for any number. Admins have none."""
    group: str | None = None
    """The group whose members alone, and admins, can see the board; None for everyone."""
    freeze_at: datetime | None = None
    """From then on, only admins see later results and ranks; None for never. In whole seconds, as
    results have them."""
    team_size: int | None = None
    """The most people in a team; None if people compete alone."""


@dataclass(frozen=True)
class HeldResult:
    """A graded submission whose result does not count until an admin has looked at it."""

    submission_id: int
    result_id: int
    user: str
    problem: str
    name: str
    worker: str | None
    by: str
    """The admin who held it, or `ROOFLINE`."""
    submitted_at: datetime
    rejudge_id: int | None


class AdminService:
    """The admin actions on one database. Every method raises `BoardError` if the database fails."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._engine = engine
        self._now = now
        self.rejudges = RejudgeService(engine, now)

    def board(self, problem: str) -> BoardSettings:
        """The settings of a problem's board; the defaults if none are stored."""
        with connect(self._engine) as connection:
            row = connection.execute(_BOARD, {"name": problem}).mappings().first()
        return BoardSettings() if row is None else BoardSettings(**row)

    def boards(self) -> dict[str, BoardSettings]:
        """The stored settings, by problem."""
        with connect(self._engine) as connection:
            rows = connection.execute(select(boards)).mappings().all()
        names = [field.name for field in fields(BoardSettings)]
        return {row["problem"]: BoardSettings(**{n: row[n] for n in names}) for row in rows}

    def boards_with_version(self) -> tuple[dict[str, BoardSettings], tuple[object, ...]]:
        """`boards`, and by the same query a value that differs after every change of
        `SubmissionQueries.version` and of the announcements that are shown."""
        with connect(self._engine) as connection:
            rows = connection.execute(_BOARDS_WITH_VERSION, {"now": self._now()}).all()
        stored = {row[6]: BoardSettings(*row[7:]) for row in rows if row[6] is not None}
        return stored, tuple(rows[0][:6])

    def set_board(self, problem: str, settings: BoardSettings, by: str) -> BoardSettings:
        """Store the settings of a board. Raises `NotFound` for a group that does not exist, and
        `Conflict` for no teams on a board where teams have submitted: their members would have two
        entries."""
        if settings.note is not None:
            settings = replace(settings, note=one_line(settings.note, MAX_REASON_CHARS) or None)
        if settings.freeze_at is not None:
            settings = replace(settings, freeze_at=settings.freeze_at.replace(microsecond=0))
        with transaction(self._engine, "admin") as connection:
            if settings.group is not None:
                found = find_group(connection, settings.group)
                settings = replace(settings, group=found["name"])
            if settings.team_size is None:
                acquire_lock(connection, "submit")
                _check_has_no_teams(connection, problem)
            values = asdict(settings)
            known = update(boards).where(boards.c.problem == problem).values(values)
            if connection.execute(known).rowcount == 0:
                connection.execute(insert(boards).values(problem=problem, **values))
            detail = ", ".join(f"{name} {value}" for name, value in values.items())
            record_action(connection, self._now(), by, "board set", problem, detail)
        return settings

    def ban(self, name: str, reason: str, by: str) -> None:
        """Ban a user: cancel their unfinished jobs, take their results off the boards, and queue
        the jobs of their workers again.

        A second ban also covers what has arrived since the first. Raises `NotFound`, and `Conflict`
        for oneself.
        """
        now = self._now()
        with transaction(self._engine, "admin") as connection:
            acquire_lock(connection, "submit")  # a submission either sees the ban or is cancelled
            user = find_user(connection, name)
            if user["name"] == by:
                raise Conflict("you cannot ban yourself")
            connection.execute(
                update(users)
                .where(users.c.id == user["id"])
                .values(banned_at=now, banned_reason=one_line(reason, MAX_REASON_CHARS))
            )
            # Jobs before results: a job that finishes meanwhile is either cancelled here, or its
            # result is there to be voided.
            cancelled = job_updates.cancel_all_of_user(connection, user["name"], by, now)
            batch_updates.settle(connection, now)
            requeued = job_updates.requeue_from_workers(connection, worker_name(user["name"]), now)
            void = select(voids.c.result_id).where(voids.c.why == "banned")
            theirs = select(
                results.c.id, literal("banned"), literal(now, UtcDateTime), literal(by)
            ).where(results.c.user == user["name"], results.c.id.not_in(void))
            added = insert(voids).from_select(_VOID_COLUMNS, theirs).returning(voids.c.result_id)
            voided = len(connection.execute(added).all())
            detail = f"{reason}; {cancelled} jobs cancelled, {voided} results off the boards"
            detail += f", {requeued} jobs taken from workers" if requeued else ""
            record_action(connection, now, by, "ban", user["name"], detail)

    def unban(self, name: str, by: str) -> None:
        """Unban a user; their results count again. Raises `NotFound` and `Conflict`."""
        with transaction(self._engine, "admin") as connection:
            user = find_user(connection, name)
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
            detail = f"{count} results back on the boards"
            record_action(connection, self._now(), by, "unban", user["name"], detail)

    def graded_by(self, name: str) -> int:
        """The number of results that a user's workers graded and that are not held, deleted or
        replaced. Raises `NotFound`."""
        with connect(self._engine) as connection:
            user = find_user(connection, name)
            query = select(func.count()).select_from(_graded_by(user["name"]).subquery())
            return int(connection.scalar(query) or 0)

    def hold(self, name: str, by: str) -> int:
        """Hold every result that a user's workers graded: it counts again once it is released, or
        its rejudge is applied. Returns their number. Raises `NotFound`."""
        now = self._now()
        with transaction(self._engine, "admin") as connection:
            user = find_user(connection, name)
            held = _graded_by(user["name"]).add_columns(
                literal("held"), literal(now, UtcDateTime), literal(by)
            )
            added = insert(voids).from_select(_VOID_COLUMNS, held).returning(voids.c.result_id)
            count = len(connection.execute(added).all())
            record_action(connection, now, by, "hold", user["name"], f"{count} results held")
        return count

    def unhold(self, name: str, by: str) -> int:
        """Release every result that `hold` held. Returns their number. Raises `NotFound`."""
        with transaction(self._engine, "admin") as connection:
            user = find_user(connection, name)
            theirs = select(jobs.c.result_id).where(_by_worker_of(user["name"]))
            held = voids.c.result_id.in_(theirs.where(jobs.c.result_id.is_not(None)))
            released = delete(voids).where(voids.c.why == "held", voids.c.by != ROOFLINE, held)
            count = connection.execute(released).rowcount
            detail = f"{count} results released"
            record_action(connection, self._now(), by, "unhold", user["name"], detail)
        return count

    def held_results(self) -> list[HeldResult]:
        """The results that only an admin's decision keeps from counting, oldest first."""
        query = (
            select(
                submissions.c.id.label("submission_id"),
                results.c.id.label("result_id"),
                submissions.c.user,
                submissions.c.problem,
                submissions.c.name,
                jobs.c.leased_by.label("worker"),
                voids.c.by,
                submissions.c.created_at.label("submitted_at"),
                submissions.c.rejudge_id,
            )
            .join(jobs, jobs.c.submission_id == submissions.c.id)
            .join(results, results.c.id == jobs.c.result_id)
            .join(voids, (voids.c.result_id == results.c.id) & (voids.c.why == "held"))
            .where(not_void(except_for="held"))
            .order_by(submissions.c.id)
        )
        with connect(self._engine) as connection:
            return [HeldResult(**row) for row in connection.execute(query).mappings()]

    def release(self, submission_id: int, by: str) -> bool:
        """Queue a held job again, with its failures and deaths reset; or let a held result count.
        False if neither is held."""
        with transaction(self._engine, "admin") as connection:
            if job_updates.release_held(connection, submission_id, self._now()):
                batch_updates.reopen(connection, submission_id)
            elif not _release_result(connection, submission_id):
                return False
            record_action(connection, self._now(), by, "release", submission_id)
        return True

    def cancel(self, submission_id: int, by: str) -> bool:
        """Cancel an unfinished submission. False if there is none."""
        with transaction(self._engine, "admin") as connection:
            return self._cancel(connection, submission_id, by)

    def delete(self, submission_id: int, by: str) -> Literal["cancelled", "deleted"] | None:
        """Cancel an unfinished submission, or hide the result of a finished one.

        The results of its rejudges are hidden too. None if there is nothing to delete.
        """
        if not is_valid_id(submission_id):
            return None
        with transaction(self._engine, "admin") as connection:
            if self._cancel(connection, submission_id, by):
                return "cancelled"
            deleted = select(voids.c.result_id).where(voids.c.why == "deleted")
            found = select(jobs.c.submission_id, jobs.c.result_id).where(
                jobs.c.submission_id.in_(_with_rejudges(submission_id)),
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
            record_action(connection, now, by, "delete", submission_id)
        return "deleted"

    def _cancel(self, connection: Connection, submission_id: int, by: str) -> bool:
        if not job_updates.cancel_job(connection, submission_id, by, self._now()):
            return False
        batch_updates.settle(connection, self._now())
        record_action(connection, self._now(), by, "cancel", submission_id)
        return True

    def drain_worker(self, name: str, by: str) -> None:
        """Give a worker no further jobs; it finishes those that it has. Raises `NotFound` for an
        unknown worker, and `Conflict` for one that is drained already."""
        self._set_drained(name, self._now(), by)

    def undrain_worker(self, name: str, by: str) -> None:
        """Give a worker jobs again. Raises `NotFound` for an unknown worker, and `Conflict` for one
        that is not drained."""
        self._set_drained(name, None, by)

    def _set_drained(self, name: str, at: datetime | None, by: str) -> None:
        this = workers.c.name == name
        differs = (
            workers.c.drained_at.is_not(None) if at is None else workers.c.drained_at.is_(None)
        )
        with transaction(self._engine, "admin") as connection:
            changed = update(workers).where(this, differs).values(drained_at=at)
            if connection.execute(changed).rowcount == 0:
                if connection.scalar(select(func.count()).where(this)):
                    raise Conflict(
                        f"{name} is {'not drained' if at is None else 'drained already'}"
                    )
                raise NotFound(f"there is no worker {name}; `grade admin worker list` has them all")
            action = "worker undrain" if at is None else "worker drain"
            record_action(connection, self._now(), by, action, name)

    def audit(self, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """The audit log, newest first. `before` limits it to lower ids, for paging."""
        return audit_entries(self._engine, limit, before)


_SETTINGS = [boards.c[field.name] for field in fields(BoardSettings)]
_BOARD = select(*_SETTINGS).where(boards.c.problem == bindparam("name"))
_STORED = select(boards.c.problem, *_SETTINGS).subquery()
_CURRENT = VERSION.subquery()
_SHOWN = (
    select(func.count(), func.coalesce(func.sum(announcements.c.id), 0))
    .where(announcements.c.until > bindparam("now", type_=UtcDateTime))
    .subquery()
)
_BOARDS_WITH_VERSION = select(*_CURRENT.c, *_SHOWN.c, *_STORED.c).select_from(
    _CURRENT.join(_SHOWN, true()).join(_STORED, true(), isouter=True)
)
_VOID_COLUMNS = ["result_id", "why", "at", "by"]


def _check_has_no_teams(connection: Connection, problem: str) -> None:
    is_open = select(boards).where(boards.c.problem == problem, boards.c.team_size.is_not(None))
    of_team = select(submissions.c.team).where(
        submissions.c.problem == problem, submissions.c.team.is_not(None)
    )
    if connection.execute(is_open).first() is None:
        return
    if name := connection.scalar(of_team.limit(1)):
        raise Conflict(f"the team {name} has submitted to {problem}, so it goes on taking teams")


def _by_worker_of(user: str) -> ColumnElement[bool]:
    """The jobs of a user's workers. The server's own worker may have the name of a user."""
    return jobs.c.leased_by.startswith(worker_name(user), autoescape=True)


def _graded_by(user: str) -> Select[int]:
    """The results that a user's workers graded, and that count, or would after an unban or the
    end of a rejudge."""
    final = ("held", "deleted", "rejudged")
    decided = select(voids.c.result_id).where(voids.c.why.in_(final))
    return (
        select(results.c.id)
        .join(jobs, jobs.c.result_id == results.c.id)
        .where(_by_worker_of(user), results.c.id.not_in(decided))
    )


def _release_result(connection: Connection, submission_id: int) -> bool:
    """Let the held result of a submission count. False if it has none."""
    if not is_valid_id(submission_id):
        return False
    mine = select(jobs.c.result_id).where(
        jobs.c.submission_id == submission_id, jobs.c.result_id.is_not(None)
    )
    held = delete(voids).where(voids.c.why == "held", voids.c.result_id.in_(mine))
    return connection.execute(held).rowcount == 1


def _with_rejudges(submission_id: int) -> Select[int]:
    """The ids of a submission and of all its rejudges, directly or through another rejudge."""
    chain = select(submissions.c.id).where(submissions.c.id == submission_id).cte(recursive=True)
    copies = select(submissions.c.id).join(chain, submissions.c.original_id == chain.c.id)
    return select(chain.union(copies).c.id)
