"""Withdrawing one's own result, for the API and for the pages' form."""

from __future__ import annotations

from grader.fleet import DeadlinePassed
from grader.server.http.errors import fail
from grader.server.http.lookup import submission_or_404
from grader.server.services import visibility
from grader.server.services.accounts import User
from grader.server.services.container import Services


def withdraw_result(services: Services, caller: User, number: int, *, undo: bool = False) -> None:
    """Take the result of the caller's own submission off its board, or back. Raises `Refusal`."""
    job, _, _ = submission_or_404(services, caller, number)
    if visibility.relation(caller, job.user) != "owner":
        fail(403, "not_yours", "only its author can withdraw a result")
    change = services.withdrawals.restore if undo else services.withdrawals.withdraw
    try:
        change(number, caller.name)
    except DeadlinePassed as late:
        fail(403, "deadline_passed", f"{late}, so results stay as they are")
