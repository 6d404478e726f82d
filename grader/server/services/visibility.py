"""Which parts of a submission a caller may see. Pure functions.

An admin sees everything except seeds, which no one sees. Users see everything of their own
submissions, and members of a team of all that was submitted for it and not cancelled. Others see
nothing of a board that is hidden, not open yet or of a group that they are not in and, until a
board's deadline, only that a submission exists. While the standings of a board
are frozen, all but admins see them as they were at that moment, and of others' later results only
that they exist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from grader.report import Report
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings

Relation = Literal["owner", "admin", "public"]

WITHHELD = frozenset({"deleted", "preview"})
"""Void reasons for which only admins see a result. ``preview`` is a rejudge not yet applied."""


@dataclass(frozen=True)
class Access:
    """The visible parts of a submission.

    `result` requires `exists`; `details` and `source` require `result`.
    """

    exists: bool
    """Its user and state. If false, it is treated as not found."""
    result: bool
    """Verdict, score, times, and the status of each case."""
    details: bool
    """Reasons and notes, the picture of a wrong answer, the submission's output, and the worker,
    which may be the name of a machine."""
    source: bool
    """The source file."""
    as_of: datetime | None = None
    """The moment whose standings, and ranks, are shown with it; None for those of now."""


FULL_ACCESS = Access(True, True, True, True)
NO_ACCESS = Access(False, False, False, False)


def relation(caller: User | None, owner: str) -> Relation:
    """The caller's relation to a submission of the user `owner`."""
    if caller is not None and caller.name == owner:
        return "owner"
    return "admin" if caller is not None and caller.role == "admin" else "public"


def is_hidden(board: BoardSettings, now: datetime) -> bool:
    """Whether only admins may see a board: it is hidden, or not open yet."""
    return board.hidden or (board.opens_at is not None and now < board.opens_at)


def can_see_board(caller: User | None, board: BoardSettings, now: datetime) -> bool:
    """Whether the caller may see a board."""
    if caller is not None and caller.role == "admin":
        return True
    is_member = board.group is None or (caller is not None and board.group in caller.groups)
    return is_member and not is_hidden(board, now)


def sees_more(caller: User | None) -> bool:
    """Whether the caller may see boards, or submissions of other users, that others do not see:
    nothing is cached for them."""
    if caller is None:
        return False
    return caller.role == "admin" or bool(caller.groups) or caller.team is not None


def deadline_passed(board: BoardSettings, now: datetime) -> bool:
    """Whether a board's deadline has passed. A board without one never ends."""
    return board.deadline is not None and now >= board.deadline


def is_frozen(board: BoardSettings, now: datetime) -> bool:
    """Whether only admins see the results since a moment, and ranks that they change."""
    return board.freeze_at is not None and now >= board.freeze_at


def frozen_since(caller: User | None, board: BoardSettings, now: datetime) -> datetime | None:
    """The moment whose standings the caller sees; None for those of now."""
    if caller is not None and caller.role == "admin":
        return None
    return board.freeze_at if is_frozen(board, now) else None


def access_for(
    caller: User | None,
    owner: str,
    board: BoardSettings,
    now: datetime,
    *,
    team: str | None = None,
    void: frozenset[str] = frozenset(),
    rejudges: bool = False,
    cancelled: bool = False,
    counted_at: datetime | None = None,
) -> Access:
    """The parts that `caller` may see of a submission of `owner`.

    team: the team that it counts for; None if it counts for its owner alone.
    void: why its result does not count; empty if it does.
    rejudges: whether it is an unfinished rejudge of another submission.
    cancelled: whether it was ended ungraded, by its author, or by an admin's deletion or ban.
    counted_at: since when its result counts; None without a result, or if that is not known.
    """
    if caller is not None and caller.role == "admin":
        return FULL_ACCESS
    if void & WITHHELD or rejudges:
        return NO_ACCESS
    frozen = frozen_since(caller, board, now)
    if relation(caller, owner) == "owner":
        return replace(FULL_ACCESS, as_of=frozen)
    if not can_see_board(caller, board, now) or cancelled or "banned" in void:
        return NO_ACCESS
    if team is not None and caller is not None and caller.team == team:
        return replace(FULL_ACCESS, as_of=frozen)
    is_later = frozen is not None and (counted_at is None or counted_at >= frozen)
    public = (board.deadline is None or deadline_passed(board, now)) and not is_later
    source = public and board.publish_sources
    return Access(exists=True, result=public, details=False, source=source, as_of=frozen)


def redact(report: Report, access: Access) -> Report | None:
    """The visible part of a report; None if there is none."""
    if not access.result:
        return None
    if access.details:
        return report
    cases = [case.model_copy(update={"mismatch": None, "reason": None}) for case in report.cases]
    hidden = {"cases": cases, "reason": "", "notes": [], "log": "", "worker": None}
    return report.model_copy(update=hidden)
