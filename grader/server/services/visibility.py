"""What of a submission is shown to whom. Pure.

An admin sees everything but seeds, which nobody does. A user sees what is his own. Everyone else
sees what the board lets them: nothing of a hidden board, and until a board's deadline only that a
submission is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from grader.report import Report
from grader.server.services.accounts import User
from grader.server.services.admin_service import BoardSettings

Relation = Literal["owner", "admin", "public"]

WITHHELD = frozenset({"deleted", "preview"})
"""Why a result is void for which it is shown to admins only; of a rejudge until it is applied."""


@dataclass(frozen=True)
class Sight:
    """What of one submission somebody is shown; each thing only where the one before is."""

    exists: bool
    """That it is there: its user and its state. Without, it is answered like one that is not."""
    result: bool
    """Verdict, score, times, and which cases passed."""
    details: bool
    """Reasons and notes, which may quote them, the picture of a wrong answer, and the submission's
    own output."""
    source: bool
    """What was handed in."""


EVERYTHING = Sight(True, True, True, True)
NOTHING = Sight(False, False, False, False)


def relation(caller: User | None, owner: str) -> Relation:
    """How a caller stands to a submission of the user `owner`."""
    if caller is not None and caller.name == owner:
        return "owner"
    return "admin" if caller is not None and caller.role == "admin" else "public"


def sees_board(caller: User | None, board: BoardSettings) -> bool:
    """Whether a board is there for a caller."""
    return not board.hidden or (caller is not None and caller.role == "admin")


def is_over(board: BoardSettings, now: datetime) -> bool:
    """Whether a board's deadline has passed; one without goes on."""
    return board.deadline is not None and now >= board.deadline


def sight(
    caller: User | None,
    owner: str,
    board: BoardSettings,
    now: datetime,
    *,
    void: frozenset[str] = frozenset(),
    rejudges: bool = False,
    cancelled: bool = False,
) -> Sight:
    """What `caller` is shown of a submission of `owner`.

    `void` is why its result does not count; `rejudges` whether it is a grading again of another
    submission that is not done yet; `cancelled` whether it was ended ungraded, by its author, or by
    an admin who deleted it or banned the author.
    """
    if caller is not None and caller.role == "admin":
        return EVERYTHING
    if void & WITHHELD or rejudges:
        return NOTHING
    if relation(caller, owner) == "owner":
        return EVERYTHING
    if board.hidden or cancelled or "banned" in void:
        return NOTHING
    open_now = board.deadline is None or is_over(board, now)
    return Sight(
        exists=True, result=open_now, details=False, source=open_now and board.publish_sources
    )


def shown(report: Report, allowed: Sight) -> Report | None:
    """A report as far as it is shown; None when nothing of it is."""
    if not allowed.result:
        return None
    if allowed.details:
        return report
    cases = [case.model_copy(update={"mismatch": None, "reason": None}) for case in report.cases]
    return report.model_copy(update={"cases": cases, "reason": "", "notes": [], "log": ""})
