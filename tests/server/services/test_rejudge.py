from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from grader.fleet import Ledger, State
from grader.report import Report
from grader.server.services import Conflict, Invalid, NotFound
from grader.server.services.accounts import Accounts
from grader.server.services.admin_service import AdminService
from grader.server.services.rejudge import GradedBy
from grader.server.services.rejudge_diff import RejudgeChange
from tests.fleet.conftest import DIGEST, Clock, enqueue
from tests.server.voids import void_reasons

MakeReport = Callable[..., Report]
H100 = "NVIDIA H100 80GB HBM3"
L4 = "NVIDIA L4"
NEXT = "e" * 64
"""The digest of the problem's next version."""


@pytest.fixture
def admin(ledger: Ledger, clock: Clock) -> AdminService:
    return AdminService(ledger._engine, clock)


def scored(score_us: float | None, **more: Any) -> dict[str, Any]:
    """The fields of a report with this score; None for an unranked one."""
    if score_us is None:
        return {"score_us": None, "score_ci_us": None, "ranked": False, **more}
    return {"score_us": score_us, "score_ci_us": (score_us - 0.5, score_us + 0.5), **more}


class Fleet:
    """Submits and grades without a worker."""

    def __init__(self, ledger: Ledger, report_of: MakeReport) -> None:
        self.ledger = ledger
        self._report_of = report_of

    def graded(self, user: str, score_us: float | None, **more: Any) -> int:
        """Submit and grade, with no other job queued. Returns the submission's id."""
        number = enqueue(self.ledger, user)
        assert self.grade(score_us, **more) == number
        return number

    def grade(self, score_us: float | None, gpu: str | None = H100, **more: Any) -> int:
        """Grade the next job for this GPU. Returns the submission's id."""
        lease = self.ledger.claim("w", lease_s=60, gpu=gpu)
        assert lease is not None
        assert self.ledger.begin(lease)
        report = self._report_of(
            **scored(score_us, gpu=gpu, problem_digest=lease.problem_digest) | more
        )
        assert self.ledger.finish(lease, report) is not None
        return lease.submission_id

    def leaderboard(self, gpu: str = H100, digest: str = DIGEST) -> list[tuple[int, str, float]]:
        entries = self.ledger.board.leaderboard(digest, gpu)
        return [(entry.rank, entry.user, entry.score_us) for entry in entries]


@pytest.fixture
def fleet(ledger: Ledger, report_of: MakeReport) -> Fleet:
    return Fleet(ledger, report_of)


def start(admin: AdminService, which: Any = "best", digest: str = DIGEST) -> int:
    return admin.rejudges.start("softmax", digest, which, reason="clock drifted", by="root")


def changes(admin: AdminService, number: int) -> list[RejudgeChange]:
    preview = admin.rejudges.preview(number)
    assert preview is not None
    return preview.changes


def states(ledger: Ledger) -> list[State]:
    found = []
    for number in range(1, 100):
        job = ledger.job(number)
        if job is None:
            break
        found.append(job.state)
    return found


def test_a_rejudge_of_the_best_results_has_a_preview(
    admin: AdminService, fleet: Fleet, clock: Clock
) -> None:
    slow = fleet.graded("ada", 70)
    ada = fleet.graded("ada", 50)
    bob = fleet.graded("bob", 60)
    fleet.graded("eve", None, verdict="wrong_answer")
    clock.move(10)
    number = start(admin)
    rejudge = admin.rejudges.rejudge(number)
    assert rejudge is not None
    assert (rejudge.state, rejudge.by, rejudge.reason) == ("preview", "root", "clock drifted")
    assert (rejudge.total, rejudge.done, rejudge.unfinished) == (2, 0, 2)
    assert [(c.original_id, c.user, c.state, c.new) for c in changes(admin, number)] == [
        (ada, "ada", "queued", None),
        (bob, "bob", "queued", None),
    ]
    again = fleet.ledger.job(changes(admin, number)[0].submission_id)
    assert again is not None
    assert (again.user, again.gpu, again.original_id, again.rejudge_id) == ("ada", H100, ada, 1)
    assert (again.created_at, again.name) == (clock(), "kernel.py")

    before = fleet.leaderboard()
    fleet.grade(66)
    fleet.grade(61)
    assert fleet.leaderboard() == before == [(1, "ada", 50), (2, "bob", 60)], (
        "the new results do not count yet"
    )
    shown = [
        (c.user, c.old.score_us, c.old.rank, c.new and c.new.score_us, c.new and c.new.rank)
        for c in changes(admin, number)
    ]
    assert shown == [("ada", 50, 1, 66, 2), ("bob", 60, 2, 61, 1)]

    clock.move(10)
    assert admin.rejudges.apply(number, "root") == 2
    assert fleet.leaderboard() == [(1, "bob", 61), (2, "ada", 66)]
    assert changes(admin, number)[0].old.rank == 1, "the preview is unchanged"
    assert [c.new and c.new.rank for c in changes(admin, number)] == [2, 1]
    rejudge = admin.rejudges.rejudge(number)
    assert rejudge is not None
    assert (rejudge.state, rejudge.decided_at) == ("applied", clock())
    old = fleet.ledger.job(ada)
    assert old is not None
    assert old.result_id is not None
    assert void_reasons(admin, [old.result_id]) == {old.result_id: {"rejudged"}}
    assert fleet.ledger.board.result(old.result_id).report.score_us == 50, "the old result is kept"
    assert [(a.actor, a.action, a.subject) for a in reversed(admin.audit())] == [
        ("root", "rejudge start", "softmax"),
        ("root", "rejudge apply", "1"),
    ]
    assert admin.audit()[-1].detail == "rejudge 1, 2 submissions: clock drifted"
    assert fleet.ledger.job(slow) is not None


def test_a_result_that_fails_the_rejudge_leaves_the_board(
    admin: AdminService, fleet: Fleet
) -> None:
    fleet.graded("ada", 70)
    fleet.graded("ada", 50)
    fleet.graded("bob", 60)
    number = start(admin)
    fleet.grade(None, verdict="wrong_answer")
    fleet.grade(60)
    ada, bob = changes(admin, number)
    assert ada.new is not None
    assert (ada.new.verdict, ada.new.score_us, ada.new.rank) == ("wrong_answer", None, None)
    assert bob.new is not None
    assert bob.new.rank == 1
    admin.rejudges.apply(number, "root")
    assert fleet.leaderboard() == [(1, "bob", 60), (2, "ada", 70)], "the second best counts"


def test_drop_keeps_the_old_results(admin: AdminService, fleet: Fleet) -> None:
    fleet.graded("ada", 50)
    fleet.graded("bob", 60)
    number = start(admin)
    fleet.grade(10)
    admin.rejudges.drop(number, "root")
    assert fleet.leaderboard() == [(1, "ada", 50), (2, "bob", 60)]
    assert states(fleet.ledger) == ["done", "done", "done", "cancelled"]
    for decide in (admin.rejudges.apply, admin.rejudges.drop):
        with pytest.raises(Conflict, match="rejudge 1 is dropped already"):
            decide(number, "root")
    assert [entry.action for entry in admin.audit()] == ["rejudge drop", "rejudge start"]


def test_an_unfinished_rejudge_cannot_be_applied(admin: AdminService, fleet: Fleet) -> None:
    fleet.graded("ada", 50)
    fleet.graded("bob", 60)
    number = start(admin)
    fleet.grade(55)
    with pytest.raises(Conflict, match="rejudge 1 still has 1 to grade"):
        admin.rejudges.apply(number, "root")
    assert fleet.leaderboard() == [(1, "ada", 50), (2, "bob", 60)]
    rejudge = admin.rejudges.rejudge(number)
    assert rejudge is not None
    assert rejudge.state == "preview"
    assert [entry.action for entry in admin.audit()] == ["rejudge start"]


def test_a_held_or_cancelled_copy_keeps_the_old_result(
    admin: AdminService, fleet: Fleet, clock: Clock
) -> None:
    for user, score in (("ada", 50), ("bob", 60), ("cy", 70)):
        fleet.graded(user, score)
    number = start(admin)
    for _ in range(3):
        clock.move(100)
        lease = fleet.ledger.claim("w", lease_s=60, gpu=H100)
        assert lease is not None
        assert lease.submission_id == 4
        assert fleet.ledger.fail(lease, "no GPU")
    assert fleet.ledger.cancel(5, "root")
    fleet.grade(71)
    held = changes(admin, number)[0]
    assert (held.state, held.held_reason) == ("held", "no GPU")
    assert admin.rejudges.apply(number, "root") == 1
    assert fleet.leaderboard() == [(1, "ada", 50), (2, "bob", 60), (3, "cy", 71)]
    assert states(fleet.ledger)[3:] == ["cancelled", "cancelled", "done"]


def test_a_rejudge_without_results_cannot_be_applied(admin: AdminService, fleet: Fleet) -> None:
    fleet.graded("ada", 50)
    number = start(admin)
    assert fleet.ledger.cancel(2, "root")
    with pytest.raises(Conflict, match="none of its submissions has a result"):
        admin.rejudges.apply(number, "root")
    admin.rejudges.drop(number, "root")


def test_each_gpu_has_its_own_leaderboard(admin: AdminService, fleet: Fleet) -> None:
    fleet.graded("ada", 50)
    fleet.graded("ada", 500, gpu=L4)
    number = start(admin)
    assert fleet.grade(510, gpu=L4) == 4, "it goes to the GPU of the old result"
    assert fleet.grade(51) == 3
    assert [(c.old.gpu, c.new and c.new.rank) for c in changes(admin, number)] == [
        (H100, 1),
        (L4, 1),
    ]
    assert admin.rejudges.apply(number, "root") == 2
    assert (fleet.leaderboard(), fleet.leaderboard(L4)) == ([(1, "ada", 51)], [(1, "ada", 510)])


def test_a_worker_with_a_gpu_type_regrades(admin: AdminService, fleet: Fleet) -> None:
    first = fleet.graded("ada", 50)
    start(admin)
    assert fleet.ledger.claim("w", lease_s=60, gpu="L4") is None
    lease = fleet.ledger.claim("w", lease_s=60, gpu="H100")
    assert lease is not None
    assert (lease.submission_id, lease.gpu) == (first + 1, H100)


def test_a_result_of_another_gpu_of_the_type_is_not_exchanged(
    admin: AdminService, fleet: Fleet
) -> None:
    """A cluster names a GPU by one word, and each GPU name has its own leaderboard."""
    fleet.graded("ada", 50)
    number = start(admin)
    lease = fleet.ledger.claim("w", lease_s=60, gpu="H100")
    assert lease is not None
    assert fleet.ledger.begin(lease)
    other = fleet._report_of(**scored(70, gpu=f"{H100} of another kind", problem_digest=DIGEST))
    assert fleet.ledger.finish(lease, other) is not None
    with pytest.raises(Conflict, match="none of its submissions has a result to exchange"):
        admin.rejudges.apply(number, "root")
    assert fleet.leaderboard() == [(1, "ada", 50)]


def test_a_rejudge_of_all_accepted_results(admin: AdminService, fleet: Fleet) -> None:
    fleet.graded("ada", None, gpu=None)
    fleet.graded("ada", 50)
    fleet.graded("bob", None, gpu=None, verdict="wrong_answer")
    with_old = enqueue(fleet.ledger, "cy")
    fleet.grade(60)
    admin.delete(with_old, "root")
    number = start(admin, "accepted")
    assert [c.original_id for c in changes(admin, number)] == [1, 2], "not the deleted one"
    first = changes(admin, number)[0]
    assert (first.old.gpu, first.old.rank) == (None, None)


def test_listed_submissions_of_any_verdict_and_version(admin: AdminService, fleet: Fleet) -> None:
    wrong = fleet.graded("ada", None, verdict="wrong_answer")
    fleet.graded("bob", 60)
    number = start(admin, [wrong, wrong], digest=NEXT)
    (change,) = changes(admin, number)
    assert change.original_id == wrong
    fleet.grade(40)
    (change,) = changes(admin, number)
    assert change.new is not None
    assert (change.new.verdict, change.new.rank) == ("accepted", 1)
    assert admin.rejudges.apply(number, "root") == 1
    assert fleet.leaderboard(digest=NEXT) == [(1, "ada", 40)], "graded by the current version"
    assert fleet.leaderboard() == [(1, "bob", 60)]


def test_selections_that_are_refused(admin: AdminService, fleet: Fleet) -> None:
    which: Any
    for which in ("best", "accepted", []):
        with pytest.raises(Invalid, match="softmax has no such results"):
            start(admin, which)
    done = fleet.graded("ada", 50)
    waiting = enqueue(fleet.ledger)
    with pytest.raises(Invalid, match="no such submission whose result counts: -1, 2, 9, 1208925"):
        start(admin, [done, waiting, 9, -1, 2**80])
    with pytest.raises(Invalid, match="attention has no such submission"):
        admin.rejudges.start("attention", DIGEST, [done], reason="", by="root")
    admin.delete(done, "root")
    with pytest.raises(Invalid):
        start(admin, [done])
    assert admin.rejudges.rejudges() == []
    assert states(fleet.ledger) == ["done", "queued"]
    assert [entry.action for entry in admin.audit()] == ["delete"]


def test_a_result_of_the_command_line_has_no_submission_to_grade(
    admin: AdminService, fleet: Fleet, make_report: MakeReport
) -> None:
    fleet.ledger.board.record(make_report(**scored(40)), "ada", b"")
    fleet.graded("bob", 60)
    number = start(admin)
    assert [change.user for change in changes(admin, number)] == ["bob"]
    assert changes(admin, number)[0].old.rank == 2


@pytest.mark.parametrize("number", [0, 1, -1, 2**31, 2**80])
def test_rejudges_that_do_not_exist(admin: AdminService, number: int) -> None:
    assert admin.rejudges.rejudge(number) is None
    assert admin.rejudges.preview(number) is None
    for decide in (admin.rejudges.apply, admin.rejudges.drop):
        with pytest.raises(NotFound, match="there is no rejudge"):
            decide(number, "root")


def test_users_submissions_come_first_and_limits_ignore_rejudges(
    admin: AdminService, fleet: Fleet
) -> None:
    fleet.graded("ada", 50)
    start(admin)
    live = enqueue(fleet.ledger, "ada", max_in_flight=1, max_queue=1)
    assert fleet.grade(49) == live
    assert fleet.grade(51) == 2


def test_a_second_rejudge_has_nothing_to_exchange(admin: AdminService, fleet: Fleet) -> None:
    fleet.graded("ada", 50)
    fleet.graded("bob", 60)
    first, second = start(admin), start(admin, [1])
    for score in (51, 61, 41):
        fleet.grade(score)
    assert admin.rejudges.apply(first, "root") == 2
    with pytest.raises(Conflict, match="none of its submissions has a result to exchange"):
        admin.rejudges.apply(second, "root")
    assert fleet.leaderboard() == [(1, "ada", 51), (2, "bob", 61)]


def test_a_rejudge_of_a_rejudge(admin: AdminService, fleet: Fleet) -> None:
    fleet.graded("ada", 50)
    first = start(admin)
    fleet.grade(51)
    admin.rejudges.apply(first, "root")
    second = start(admin)
    assert [c.original_id for c in changes(admin, second)] == [2]
    fleet.grade(52)
    admin.rejudges.apply(second, "root")
    assert fleet.leaderboard() == [(1, "ada", 52)]
    assert [rejudge.id for rejudge in admin.rejudges.rejudges()] == [second, first]


def test_a_ban_or_deletion_during_a_rejudge_persists(
    admin: AdminService, fleet: Fleet, ledger: Ledger, clock: Clock
) -> None:
    Accounts(ledger._engine, clock).add_user("eve")
    fleet.graded("eve", 40)
    fleet.graded("eve", 45)
    fleet.graded("ada", 50)
    fleet.graded("bob", 60)
    number = start(admin, "accepted")
    for score in (41, 46, 51, 61):
        fleet.grade(score)
    admin.ban("eve", "", "root")
    admin.delete(3, "root")
    eve, _, ada, bob = changes(admin, number)
    assert (eve.old.rank, eve.new and eve.new.rank) == (None, None)
    assert (ada.old.rank, bob.old.rank) == (None, 1)
    assert admin.rejudges.apply(number, "root") == 4
    assert fleet.leaderboard() == [(1, "bob", 61)]
    admin.unban("eve", "root")
    assert fleet.leaderboard() == [(1, "eve", 41), (2, "bob", 61)]


def test_a_deletion_covers_the_replacement(admin: AdminService, fleet: Fleet) -> None:
    first = fleet.graded("ada", 50)
    fleet.graded("bob", 60)
    for score in (51, 52):  # a rejudge, and a rejudge of its copy
        number = start(admin)
        fleet.grade(score)
        fleet.grade(61)
        admin.rejudges.apply(number, "root")
    assert fleet.leaderboard() == [(1, "ada", 52), (2, "bob", 61)]
    assert admin.delete(first, "root") == "deleted"
    assert fleet.leaderboard() == [(1, "bob", 61)]
    assert admin.delete(first, "root") is None
    assert [act.subject for act in admin.audit() if act.action == "delete"] == ["1"]


def test_a_ban_before_the_regrading_persists(
    admin: AdminService, fleet: Fleet, ledger: Ledger, clock: Clock
) -> None:
    Accounts(ledger._engine, clock).add_user("eve")
    fleet.graded("eve", 40)
    fleet.graded("bob", 60)
    number = start(admin)
    admin.ban("eve", "", "root")
    assert states(ledger)[2:] == ["cancelled", "queued"]
    fleet.grade(61)
    assert admin.rejudges.apply(number, "root") == 1
    assert fleet.leaderboard() == [(1, "bob", 61)]


def test_of_concurrent_applies_one_succeeds(admin: AdminService, fleet: Fleet) -> None:
    fleet.graded("ada", 50)
    number = start(admin)
    fleet.grade(51)

    def apply(by: int) -> bool:
        try:
            return admin.rejudges.apply(number, f"root{by}") == 1
        except Conflict as refusal:
            assert "applied already" in str(refusal)  # noqa: PT017  # one of them may succeed
            return False

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(apply, range(6))) == 1
    assert fleet.leaderboard() == [(1, "ada", 51)]
    assert [entry.action for entry in admin.audit()] == ["rejudge apply", "rejudge start"]


def test_of_concurrent_apply_and_drop_one_succeeds(admin: AdminService, fleet: Fleet) -> None:
    fleet.graded("ada", 50)
    for round_ in range(5):
        number = start(admin, [1])
        fleet.grade(51)

        def apply(number: int = number) -> str:
            try:
                admin.rejudges.apply(number, "root")
            except Conflict:
                return "refused"
            return "applied"

        def drop(number: int = number) -> str:
            try:
                admin.rejudges.drop(number, "root")
            except Conflict:
                return "refused"
            return "dropped"

        with ThreadPoolExecutor(2) as pool:
            outcomes = {pool.submit(apply), pool.submit(drop)}
            said = {one.result() for one in outcomes} - {"refused"}
        rejudge = admin.rejudges.rejudge(number)
        assert rejudge is not None
        assert said == {rejudge.state}, round_
        if rejudge.state == "applied":
            assert fleet.leaderboard() == [(1, "ada", 51)]
            return
        assert fleet.leaderboard() == [(1, "ada", 50)]


def test_concurrent_rejudges_of_a_submission_leave_one_result(
    admin: AdminService, fleet: Fleet
) -> None:
    fleet.graded("ada", 50)
    numbers = [start(admin, [1]) for _ in range(4)]
    for score in (51, 52, 53, 54):
        fleet.grade(score)

    def apply(number: int) -> int:
        try:
            return admin.rejudges.apply(number, "root")
        except Conflict:
            return 0

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(apply, numbers)) == 1
    counting = [n for n in range(1, 6) if not void_reasons(admin, [n])]
    assert len(counting) == 1
    assert counting != [1]


def test_a_rejudge_of_all_that_a_worker_graded(
    admin: AdminService, ledger: Ledger, report_of: MakeReport
) -> None:
    """Of one machine, or of all machines of a user; wrong answers too, since they may be false."""
    for worker, verdict in (
        ("farm/a", "accepted"),
        ("farm/a", "wrong_answer"),
        ("farm/b", "accepted"),
        ("farmer/a", "accepted"),
        ("f_rm/a", "accepted"),
        ("local", "accepted"),
    ):
        enqueue(ledger)
        lease = ledger.claim(worker, lease_s=60)
        assert lease is not None
        assert ledger.begin(lease)
        assert ledger.finish(lease, report_of(verdict=verdict)) is not None

    def chosen(worker: str) -> list[int]:
        return [c.original_id for c in changes(admin, start(admin, GradedBy(worker)))]

    assert chosen("farm/a") == [1, 2]
    assert chosen("farm") == [1, 2, 3]
    assert chosen("f_rm") == [5]
    assert chosen("local") == [6]
    with pytest.raises(Invalid, match="no result of softmax that counts is of a worker far;"):
        chosen("far")
