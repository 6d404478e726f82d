from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from grader.fleet import BatchItem, DeadlinePassed, Ledger
from grader.report import Report
from grader.server.services import Conflict
from grader.server.services.admin_service import AdminService, BoardSettings
from grader.server.services.submission_queries import SubmissionQueries
from grader.server.services.withdrawals import Withdrawals
from tests.fleet.conftest import DIGEST, Clock, a_submission, enqueue
from tests.server.services.test_rejudge import Fleet, start
from tests.server.services.test_source_retention import Shop
from tests.server.voids import void_reasons

MakeReport = Callable[..., Report]


@pytest.fixture
def admin(ledger: Ledger, clock: Clock) -> AdminService:
    return AdminService(ledger._engine, clock)


@pytest.fixture
def withdrawals(ledger: Ledger, clock: Clock) -> Withdrawals:
    return Withdrawals(ledger._engine, clock)


@pytest.fixture
def fleet(ledger: Ledger, report_of: MakeReport) -> Fleet:
    return Fleet(ledger, report_of)


def test_the_next_best_counts_until_it_is_taken_back(
    withdrawals: Withdrawals, fleet: Fleet
) -> None:
    second, best = fleet.graded("ada", 60), fleet.graded("ada", 40)
    fleet.graded("bob", 50)
    whole = [(1, "ada", 40.0), (2, "bob", 50.0)]
    for _ in range(2):  # again does nothing
        withdrawals.withdraw(best, "ada")
        assert fleet.leaderboard() == [(1, "bob", 50.0), (2, "ada", 60.0)]
    withdrawals.withdraw(second, "ada")
    assert fleet.leaderboard() == [(1, "bob", 50.0)]
    for _ in range(2):
        withdrawals.restore(best, "ada")
        assert fleet.leaderboard() == whole
    withdrawals.restore(second, "ada")
    assert fleet.leaderboard() == whole


def test_nobody_elses_result_is_touched(withdrawals: Withdrawals, fleet: Fleet) -> None:
    number = fleet.graded("ada", 40)
    for change in (withdrawals.withdraw, withdrawals.restore):
        with pytest.raises(Conflict, match=f"bob has no submission {number}"):
            change(number, "bob")
        with pytest.raises(Conflict, match="ada has no submission 99"):
            change(99, "ada")
    withdrawals.withdraw(number, "ada")
    with pytest.raises(Conflict):
        withdrawals.restore(number, "bob")
    assert fleet.leaderboard() == []


def test_only_a_result_can_be_withdrawn(withdrawals: Withdrawals, ledger: Ledger) -> None:
    number = enqueue(ledger)
    with pytest.raises(Conflict, match="submission 1 is queued and has no result"):
        withdrawals.withdraw(number, "ada")
    assert ledger.cancel(number, "ada")
    with pytest.raises(Conflict, match="is cancelled and has no result"):
        withdrawals.withdraw(number, "ada")
    ledger.submit_batch("ada", "softmax", DIGEST, [BatchItem("a", a_submission())])
    with pytest.raises(Conflict, match="ada has no submission 2"):
        withdrawals.withdraw(2, "ada")


def test_from_the_deadline_on_results_stay_as_they_are(
    withdrawals: Withdrawals, admin: AdminService, fleet: Fleet, clock: Clock
) -> None:
    kept, gone = fleet.graded("ada", 40), fleet.graded("ada", 30)
    admin.set_board("softmax", BoardSettings(deadline=clock() + timedelta(seconds=10)), "root")
    clock.move(9)
    withdrawals.withdraw(gone, "ada")
    clock.move(1)
    with pytest.raises(DeadlinePassed):
        withdrawals.withdraw(kept, "ada")
    with pytest.raises(DeadlinePassed):
        withdrawals.restore(gone, "ada")
    assert fleet.leaderboard() == [(1, "ada", 40.0)]


def test_a_result_that_is_void_for_another_reason_stays_void(
    withdrawals: Withdrawals, admin: AdminService, fleet: Fleet
) -> None:
    number = fleet.graded("ada", 40)
    result_id = fleet.ledger.job(number).result_id  # type: ignore[union-attr]
    assert result_id is not None
    withdrawals.withdraw(number, "ada")
    admin.delete(number, "root")
    assert void_reasons(admin, [result_id]) == {result_id: {"withdrawn", "deleted"}}
    withdrawals.restore(number, "ada")
    assert void_reasons(admin, [result_id]) == {result_id: {"deleted"}}
    assert fleet.leaderboard() == []


def test_a_withdrawn_result_is_not_regraded(
    withdrawals: Withdrawals, admin: AdminService, fleet: Fleet
) -> None:
    next_best, best = fleet.graded("ada", 60), fleet.graded("ada", 40)
    withdrawals.withdraw(best, "ada")
    preview = admin.rejudges.preview(start(admin))
    assert preview is not None
    assert [one.original_id for one in preview.changes] == [next_best]


def test_a_withdrawal_during_a_rejudge_holds_for_the_new_result(
    withdrawals: Withdrawals, admin: AdminService, fleet: Fleet
) -> None:
    number = fleet.graded("ada", 40)
    rejudge = start(admin)
    new = fleet.grade(41)
    withdrawals.withdraw(number, "ada")
    admin.rejudges.apply(rejudge, "root")
    assert fleet.leaderboard() == []
    for change in (withdrawals.withdraw, withdrawals.restore):
        with pytest.raises(Conflict, match="graded again; withdraw the one that replaced it"):
            change(number, "ada")
    withdrawals.restore(new, "ada")
    assert fleet.leaderboard() == [(1, "ada", 41.0)]


def test_every_change_gives_another_version(
    withdrawals: Withdrawals, fleet: Fleet, clock: Clock
) -> None:
    queries = SubmissionQueries(fleet.ledger._engine)
    numbers = [fleet.graded("ada", 40 + place) for place in range(4)]
    seen = [queries.version()]
    for withdrawn in ((0,), (0, 3), (1, 2), (0, 3), (1,)):
        for place, number in enumerate(numbers):
            clock.move(1)
            change = withdrawals.withdraw if place in withdrawn else withdrawals.restore
            change(number, "ada")
        seen.append(queries.version())
    assert len(set(seen)) == len(seen), "also where as many, of the same sum, came as went"


def test_a_withdrawn_source_is_kept(ledger: Ledger, report_of: MakeReport, clock: Clock) -> None:
    shop = Shop(ledger, report_of, clock)
    slow, best = shop.graded(60), shop.graded(40)
    shop.graded(70)
    Withdrawals(ledger._engine, clock).withdraw(best, "ada")
    assert shop.remove_old() == 1
    assert shop.kept() == [slow, best]
