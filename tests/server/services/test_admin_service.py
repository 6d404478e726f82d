from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from grader.board import Board
from grader.db.engine import transaction
from grader.db.tables import voids
from grader.fleet import Ledger, State
from grader.report import Report
from grader.server.services import Conflict, NotFound
from grader.server.services.accounts import Accounts, worker_name
from grader.server.services.admin_service import AdminService, BoardSettings
from grader.server.services.rejudge import GradedBy
from tests.fleet.conftest import DIGEST, Clock, enqueue
from tests.server.voids import void_reasons
from tests.waiting import PATIENCE_S

MakeReport = Callable[..., Report]
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def accounts(ledger: Ledger, clock: Clock) -> Accounts:
    return Accounts(ledger._engine, clock)


@pytest.fixture
def admin(ledger: Ledger, clock: Clock) -> AdminService:
    return AdminService(ledger._engine, clock)


def finish(ledger: Ledger, report: Report) -> int:
    """Grade the next job. Returns the result's id."""
    lease = ledger.claim("w", lease_s=60, gpu=H100)
    assert lease is not None
    assert ledger.begin(lease)
    number = ledger.finish(lease, report)
    assert number is not None
    return number


def graded(ledger: Ledger, report: Report, user: str) -> int:
    """Submit, and grade with this report. Returns the submission's id."""
    number = enqueue(ledger, user)
    finish(ledger, report)
    return number


def state(ledger: Ledger, number: int) -> State:
    job = ledger.job(number)
    assert job is not None
    return job.state


def result(ledger: Ledger, number: int) -> int:
    job = ledger.job(number)
    assert job is not None
    assert job.result_id is not None
    return job.result_id


def leaderboard(ledger: Ledger) -> list[tuple[int, str]]:
    return [(entry.rank, entry.user) for entry in ledger.board.leaderboard(DIGEST, H100)]


def actions(admin: AdminService) -> list[tuple[str, str, str]]:
    return [(entry.actor, entry.action, entry.subject) for entry in reversed(admin.audit())]


def hold(ledger: Ledger, clock: Clock) -> int:
    """Create a held job. Returns its submission's id."""
    number = enqueue(ledger)
    for _ in range(3):
        lease = ledger.claim("w", lease_s=60)
        assert lease is not None
        assert ledger.fail(lease, "the GPU fell off the bus")
        clock.move(100)
    assert state(ledger, number) is State.HELD
    return number


def test_a_board_without_settings_has_the_defaults(admin: AdminService) -> None:
    assert admin.board("softmax") == BoardSettings(None, False, False, None)
    assert admin.boards() == {}


def test_board_settings_are_stored_and_changed(admin: AdminService, clock: Clock) -> None:
    east = datetime(2030, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    first = BoardSettings(east, hidden=True, note="for the course\nof May")
    assert admin.set_board("softmax", first, "root").note == "for the course of May"
    kept = admin.board("softmax")
    assert kept.deadline == east
    assert kept.deadline.tzinfo is UTC
    assert (kept.hidden, kept.publish_sources) == (True, False)
    admin.set_board("softmax", BoardSettings(publish_sources=True), "root")
    admin.set_board("attention", BoardSettings(note=""), "root")
    assert admin.boards() == {
        "softmax": BoardSettings(publish_sources=True),
        "attention": BoardSettings(),
    }
    assert actions(admin) == [
        ("root", "board set", "softmax"),
        ("root", "board set", "softmax"),
        ("root", "board set", "attention"),
    ]
    assert "hidden True" in admin.audit()[-1].detail


def test_concurrent_changes_of_settings(admin: AdminService) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: admin.set_board("softmax", BoardSettings(), str(n)), range(8)))
    assert len(admin.audit()) == 8
    assert admin.boards() == {"softmax": BoardSettings()}


def test_a_ban_voids_results_and_cancels_jobs(
    accounts: Accounts, admin: AdminService, ledger: Ledger, clock: Clock, report_of: MakeReport
) -> None:
    for name in ("Eve", "ada"):
        accounts.add_user(name)
    graded(ledger, report_of(score_us=40.0, score_ci_us=(39, 41)), "Eve")
    graded(ledger, report_of(score_us=90.0, score_ci_us=(89, 91)), "Eve")
    graded(ledger, report_of(), "ada")
    waiting, kept = enqueue(ledger, "Eve"), enqueue(ledger, "ada")
    running = ledger.claim("w", lease_s=60)
    assert running is not None
    assert running.submission_id == waiting
    assert ledger.begin(running)
    assert leaderboard(ledger) == [(1, "Eve"), (2, "ada")]

    admin.ban("eve", "probed the\njudge", "root")
    assert leaderboard(ledger) == [(1, "ada")]
    assert void_reasons(admin, [1, 2, 3]) == {1: {"banned"}, 2: {"banned"}}
    assert state(ledger, waiting) is State.CANCELLED
    assert ledger.finish(running, report_of()) is None, "a late result is dropped"
    assert state(ledger, kept) is State.QUEUED
    eve = accounts.user("Eve")
    assert eve is not None
    assert (eve.banned_at, eve.banned_reason) == (clock(), "probed the judge")

    # A second ban covers results that arrived during the first.
    late = graded_now(ledger, report_of, "Eve", kept)
    assert leaderboard(ledger) == [(1, "Eve"), (2, "ada")]
    admin.ban("Eve", "again", "root")
    assert leaderboard(ledger) == [(1, "ada")]
    assert void_reasons(admin, [late]) == {late: {"banned"}}

    admin.unban("EVE", "root")
    assert leaderboard(ledger) == [(1, "Eve"), (2, "ada")]
    assert void_reasons(admin, [1, 2, 3]) == {}
    assert actions(admin)[2:] == [
        ("root", "ban", "Eve"),
        ("root", "ban", "Eve"),
        ("root", "unban", "Eve"),
    ]
    assert "1 jobs cancelled, 2 results" in admin.audit()[2].detail


def test_jobs_of_a_banned_worker_are_requeued(
    accounts: Accounts, admin: AdminService, ledger: Ledger
) -> None:
    for name in ("wil_ma", "wilma"):
        accounts.add_user(name, "worker")
    workers = [worker_name(name, "gpu-1") for name in ("wil_ma", "wilma", "wil_ma")]
    numbers = [enqueue(ledger) for _ in workers]
    leases = [ledger.claim(worker, lease_s=600) for worker in workers]
    assert leases[0] is not None
    assert ledger.begin(leases[0])
    admin.ban("wil_ma", "forged results", "root")
    states = [state(ledger, number) for number in numbers]
    assert states == [State.QUEUED, State.LEASED, State.QUEUED]
    assert not ledger.heartbeat(leases[0], 600)
    again = ledger.job(numbers[0])
    assert again is not None
    assert (again.deaths, again.failures, again.leased_by) == (0, 0, None)
    assert "2 jobs taken from workers" in admin.audit()[0].detail


def test_a_result_concurrent_with_a_ban_does_not_count(
    accounts: Accounts, admin: AdminService, ledger: Ledger, report_of: MakeReport
) -> None:
    accounts.add_user("eve")
    leases = []
    for _ in range(8):
        enqueue(ledger, "eve")
        lease = ledger.claim("w", lease_s=60)
        assert lease is not None
        assert ledger.begin(lease)
        leases.append(lease)
    with ThreadPoolExecutor(5) as pool:
        finished = [pool.submit(ledger.finish, lease, report_of()) for lease in leases]
        pool.submit(admin.ban, "eve", "", "root").result()
        numbers = [one.result() for one in finished]
    assert leaderboard(ledger) == []
    done = [number for number in numbers if number is not None]
    assert set(void_reasons(admin, done)) == set(done)
    ended = [state(ledger, lease.submission_id) for lease in leases]
    assert ended.count(State.DONE) == len(done)
    assert ended.count(State.CANCELLED) == len(leases) - len(done)


def test_a_submission_concurrent_with_a_ban_is_cancelled(
    accounts: Accounts, admin: AdminService, ledger: Ledger
) -> None:
    """A ban waits for submissions that have not seen it, and cancels them."""
    accounts.add_user("eve")
    with ThreadPoolExecutor(1) as pool:
        with transaction(ledger._engine, "submit"):
            banned = pool.submit(admin.ban, "eve", "", "root")
            with pytest.raises(TimeoutError):
                banned.result(0.3)
        banned.result(PATIENCE_S)


def graded_now(ledger: Ledger, report_of: MakeReport, user: str, before: int) -> int:
    """Cancel the job `before`, and give the user a fast result. Returns its id."""
    assert ledger.cancel(before, "ada")
    return result(ledger, graded(ledger, report_of(score_us=10.0, score_ci_us=(9.0, 11.0)), user))


def test_bans_that_are_refused(accounts: Accounts, admin: AdminService) -> None:
    accounts.add_user("root", "admin")
    accounts.add_user("ada")
    with pytest.raises(Conflict, match="cannot ban yourself"):
        admin.ban("ROOT", "", "root")
    with pytest.raises(NotFound, match="no user eve"):
        admin.ban("eve", "", "root")
    with pytest.raises(NotFound, match="no user eve"):
        admin.unban("eve", "root")
    with pytest.raises(Conflict, match="ada is not banned"):
        admin.unban("ada", "root")
    assert [action for _, action, _ in actions(admin)] == ["user add", "user add"]


def test_a_finished_submission_is_deleted_once(
    admin: AdminService, ledger: Ledger, report_of: MakeReport
) -> None:
    slow = graded(ledger, report_of(score_us=90.0, score_ci_us=(89, 91)), "ada")
    fast = graded(ledger, report_of(), "ada")
    assert admin.delete(fast, "root") == "deleted"
    assert admin.delete(fast, "root") is None
    assert void_reasons(admin, [result(ledger, slow), result(ledger, fast)]) == {
        result(ledger, fast): {"deleted"}
    }
    (entry,) = ledger.board.leaderboard(DIGEST, H100)
    assert entry.result_id == result(ledger, slow)
    assert ledger.board.result(result(ledger, fast)).user == "ada", "the result itself is kept"
    assert admin.delete(slow, "root") == "deleted"
    assert ledger.board.gpus(DIGEST) == []
    assert actions(admin) == [("root", "delete", "2"), ("root", "delete", "1")]


def test_a_new_result_is_ranked_among_those_that_count(
    admin: AdminService, ledger: Ledger, make_report: MakeReport, report_of: MakeReport
) -> None:
    admin.delete(graded(ledger, report_of(score_us=1.0, score_ci_us=(1, 1)), "eve"), "root")
    assert ledger.board.record(make_report(), "ada", b"").rank == 1


def test_an_unfinished_submission_is_cancelled_instead(admin: AdminService, ledger: Ledger) -> None:
    number = enqueue(ledger)
    assert admin.delete(number, "root") == "cancelled"
    job = ledger.job(number)
    assert job is not None
    assert (job.state, job.cancelled_by) == (State.CANCELLED, "root")
    assert admin.delete(number, "root") is None
    assert actions(admin) == [("root", "cancel", "1")]


@pytest.mark.parametrize("number", [0, -1, 5, 2**31, 2**80])
def test_ids_that_do_not_exist(admin: AdminService, ledger: Ledger, number: int) -> None:
    assert admin.delete(number, "root") is None
    assert not admin.release(number, "root")
    assert admin.audit() == []


def test_a_held_job_is_released_once(admin: AdminService, ledger: Ledger, clock: Clock) -> None:
    number = hold(ledger, clock)
    assert admin.release(number, "root")
    assert not admin.release(number, "root")
    job = ledger.job(number)
    assert job is not None
    assert (job.state, job.failures, job.held_reason) == (State.QUEUED, 0, None)
    assert job.updated_at == clock()
    assert ledger.claim("w", lease_s=60) is not None
    assert actions(admin) == [("root", "release", str(number))]


def test_a_held_job_is_deleted(admin: AdminService, ledger: Ledger, clock: Clock) -> None:
    number = hold(ledger, clock)
    assert admin.delete(number, "root") == "cancelled"
    assert ledger.held() == []


def test_the_audit_log_is_paged(admin: AdminService) -> None:
    for number in range(5):
        admin.set_board(f"p{number}", BoardSettings(), "root")
    newest = admin.audit(limit=2)
    assert [entry.subject for entry in newest] == ["p4", "p3"]
    assert [entry.subject for entry in admin.audit(10, before=newest[-1].id)] == ["p2", "p1", "p0"]
    assert admin.audit(10, before=-(2**70)) == []
    assert len(admin.audit(10, before=2**70)) == 5


def test_a_board_opened_before_the_ledger_sees_voids(
    tmp_path: Path, clock: Clock, make_report: MakeReport
) -> None:
    url = f"sqlite:///{tmp_path}/board.sqlite3"
    board = Board.open(url)
    first = board.record(make_report(), "ada", b"").id
    assert [entry.user for entry in board.leaderboard(DIGEST, H100)] == ["ada"]
    ledger = Ledger.open(url, clock)
    with ledger._engine.begin() as connection:
        connection.execute(
            voids.insert().values(result_id=first, why="deleted", at=clock(), by="root")
        )
    assert board.leaderboard(DIGEST, H100) == []
    assert board.gpus(DIGEST) == []
    board.close()
    ledger.close()


def test_what_a_banned_worker_graded_can_be_held_and_regraded(
    accounts: Accounts, admin: AdminService, ledger: Ledger, clock: Clock, report_of: MakeReport
) -> None:
    def graded_on(worker: str, user: str, score_us: float) -> int:
        number = enqueue(ledger, user)
        lease = ledger.claim(worker, lease_s=60, gpu=H100)
        assert lease is not None
        assert ledger.begin(lease)
        interval = (score_us, score_us)
        assert ledger.finish(lease, report_of(score_us=score_us, score_ci_us=interval))
        return number

    accounts.add_user("farm", "worker")
    forged = graded_on(worker_name("farm", "a"), "eve", 1.0)
    honest = graded_on(worker_name("farm", "b"), "ada", 20.0)
    graded_on(worker_name("farmer", "a"), "bob", 30.0)
    graded_on("farm", "ann", 50.0)  # by the server's own worker, of the same name
    admin.ban("farm", "forged", "root")
    assert admin.graded_by("FARM") == 2
    assert leaderboard(ledger) == [(1, "eve"), (2, "ada"), (3, "bob"), (4, "ann")]
    assert admin.hold("farm", "root") == 2
    assert (admin.graded_by("farm"), admin.hold("farm", "root")) == (0, 0)
    assert leaderboard(ledger) == [(1, "bob"), (2, "ann")]
    held = [(one.submission_id, one.user, one.worker, one.by) for one in admin.held_results()]
    assert held == [(forged, "eve", "farm/a", "root"), (honest, "ada", "farm/b", "root")]

    assert admin.release(honest, "root")
    assert not admin.release(honest, "root")
    assert leaderboard(ledger) == [(1, "ada"), (2, "bob"), (3, "ann")]

    # A held result can be graded again, on another worker; then the new result counts.
    rejudge = admin.rejudges.start("softmax", DIGEST, GradedBy("farm/a"), reason="", by="root")
    finish(ledger, report_of(score_us=40.0, score_ci_us=(40, 40)))
    preview = admin.rejudges.preview(rejudge)
    assert preview is not None
    assert [(c.old.rank, c.new and c.new.rank) for c in preview.changes] == [(None, 3)]
    assert admin.rejudges.apply(rejudge, "root") == 1
    assert leaderboard(ledger) == [(1, "ada"), (2, "bob"), (3, "eve"), (4, "ann")]
    assert admin.held_results() == []

    assert admin.hold("farm", "root") == 1
    assert admin.unhold("farm", "root") == 2, "the replaced one too, which still does not count"
    assert leaderboard(ledger) == [(1, "ada"), (2, "bob"), (3, "eve"), (4, "ann")]
    assert [a for _, a, _ in actions(admin)][2:5] == ["hold", "hold", "release"]
    for action in (admin.hold, admin.unhold):
        with pytest.raises(NotFound):
            action("nobody", "root")
