from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import func, select

from grader.board import Board, BoardError
from grader.db.tables import blobs, results
from grader.fleet import (
    DeadlinePassed,
    Job,
    Lease,
    Ledger,
    QueueFull,
    State,
    TooManyInFlight,
    Worker,
)
from grader.fleet.job import MAX_SOURCE_BYTES, KeyReused
from grader.fleet.job_updates import MAX_FAILURES
from grader.fleet.ledger import RETRY_DELAYS_S, ROOFLINE
from grader.judge import Progress
from grader.report import FLOOR_SHARE, Report
from grader.server.services.admin_service import AdminService
from tests.fleet.conftest import DIGEST, Clock, a_submission, enqueue

MakeReport = Callable[..., Report]
LEASE_S = 60.0


def claim(ledger: Ledger, worker: str = "w1") -> Lease:
    lease = ledger.claim(worker, lease_s=LEASE_S)
    assert lease is not None
    return lease


def begun(ledger: Ledger) -> Lease:
    lease = claim(ledger)
    assert ledger.begin(lease)
    return lease


def job(ledger: Ledger, number: int) -> Job:
    found = ledger.job(number)
    assert found is not None
    return found


def results_of(ledger: Ledger) -> int:
    return ledger.board.count("softmax")


# Every allowed action of each state, and the state it leads to. Any other action changes nothing.

ALLOWED = {
    (State.QUEUED, "claim"): State.LEASED,
    (State.QUEUED, "cancel"): State.CANCELLED,
    (State.LEASED, "begin"): State.RUNNING,
    (State.LEASED, "heartbeat"): State.LEASED,
    (State.LEASED, "fail"): State.QUEUED,
    (State.LEASED, "give_back"): State.QUEUED,
    (State.LEASED, "sweep"): State.QUEUED,
    (State.LEASED, "cancel"): State.CANCELLED,
    (State.RUNNING, "heartbeat"): State.RUNNING,
    (State.RUNNING, "finish"): State.DONE,
    (State.RUNNING, "fail"): State.QUEUED,
    (State.RUNNING, "give_back"): State.QUEUED,
    (State.RUNNING, "sweep"): State.QUEUED,
    (State.RUNNING, "cancel"): State.CANCELLED,
    (State.HELD, "release"): State.QUEUED,
    (State.HELD, "cancel"): State.CANCELLED,
}

ACTIONS: dict[str, Callable[[Ledger, Lease, Report], object]] = {
    "claim": lambda ledger, lease, report: ledger.claim("w2", lease_s=LEASE_S),
    "begin": lambda ledger, lease, report: ledger.begin(lease),
    "heartbeat": lambda ledger, lease, report: ledger.heartbeat(lease, 2 * LEASE_S),
    "finish": lambda ledger, lease, report: ledger.finish(lease, report),
    "fail": lambda ledger, lease, report: ledger.fail(lease, "the GPU fell off the bus"),
    "give_back": lambda ledger, lease, report: ledger.give_back(lease),
    "sweep": lambda ledger, lease, report: ledger.sweep(),
    "cancel": lambda ledger, lease, report: ledger.cancel(lease.submission_id, "ada"),
    "release": lambda ledger, lease, report: ledger.release(lease.submission_id),
}


def bring_to(ledger: Ledger, clock: Clock, state: State, report: Report) -> Lease:
    """Bring a job into `state`. Returns its last lease."""
    enqueue(ledger)
    lease = claim(ledger)
    if state is State.QUEUED:
        assert ledger.give_back(lease)
    if state in (State.RUNNING, State.DONE):
        assert ledger.begin(lease)
    if state is State.DONE:
        assert ledger.finish(lease, report) is not None
    if state is State.CANCELLED:
        assert ledger.cancel(lease.submission_id, "ada")
    if state is State.HELD:
        for pause_s in RETRY_DELAYS_S:
            assert ledger.fail(lease, "no GPU")
            clock.move(pause_s)
            lease = claim(ledger)
        assert ledger.fail(lease, "no GPU")
    assert job(ledger, lease.submission_id).state is state
    return lease


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("state", State)
def test_every_action_in_every_state(
    ledger: Ledger, clock: Clock, report_of: MakeReport, state: State, action: str
) -> None:
    lease = bring_to(ledger, clock, state, report_of())
    if action == "sweep":
        clock.move(LEASE_S + 1)
    before, recorded = job(ledger, lease.submission_id), results_of(ledger)
    answer = ACTIONS[action](ledger, lease, report_of())
    after = job(ledger, lease.submission_id)
    expected = ALLOWED.get((state, action))
    assert bool(answer) is (expected is not None)
    if expected is None:
        assert (after, results_of(ledger)) == (before, recorded)
    else:
        assert after.state is expected
        assert after != before
        assert results_of(ledger) == recorded + (action == "finish")


@pytest.mark.parametrize("action", ["begin", "heartbeat", "finish", "fail", "give_back"])
@pytest.mark.parametrize("state", [State.LEASED, State.RUNNING])
def test_a_stale_token_changes_nothing(
    ledger: Ledger, clock: Clock, report_of: MakeReport, state: State, action: str
) -> None:
    enqueue(ledger)
    stale = begun(ledger)
    clock.move(LEASE_S + 1)
    assert ledger.sweep() == 1
    other = claim(ledger, "w2")
    assert state is State.LEASED or ledger.begin(other)
    before = job(ledger, stale.submission_id)
    assert not ACTIONS[action](ledger, stale, report_of())
    assert job(ledger, stale.submission_id) == before
    assert results_of(ledger) == 0
    assert before.leased_by == "w2"


def test_a_worker_gets_the_submission_unchanged(ledger: Ledger, clock: Clock) -> None:
    number = ledger.submit("ada", "softmax", DIGEST, a_submission("\0é"), "NVIDIA H100")
    assert ledger.claim("w1", lease_s=LEASE_S) is None
    lease = ledger.claim("w1", lease_s=LEASE_S, gpu="NVIDIA H100")
    assert lease == Lease(
        submission_id=number,
        token=lease.token if lease else "",
        until=clock() + timedelta(seconds=LEASE_S),
        problem="softmax",
        problem_digest=DIGEST,
        name="kernel.py",
        language="python",
        source="\0é".encode(),
        gpu="NVIDIA H100",
    )
    assert lease.token not in repr(lease)
    assert job(ledger, number) == Job(
        submission_id=number,
        user="ada",
        problem="softmax",
        problem_digest=DIGEST,
        name="kernel.py",
        language="python",
        sha256=a_submission("\0é").sha256,
        gpu="NVIDIA H100",
        created_at=clock(),
        state=State.LEASED,
        position=None,
        failures=0,
        deaths=0,
        not_before=None,
        leased_by="w1",
        lease_until=lease.until,
        held_reason=None,
        cancelled_by=None,
        result_id=None,
        progress=None,
        updated_at=clock(),
        rejudge_id=None,
        original_id=None,
        batch_id=None,
    )


def test_equal_sources_are_stored_once(ledger: Ledger) -> None:
    for user in ("ada", "bob"):
        enqueue(ledger, user, "x = 1")
    enqueue(ledger, "ada", "x = 2")
    with ledger._engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(blobs)) == 2
    assert {claim(ledger).source for _ in range(3)} == {b"x = 1", b"x = 2"}


def test_a_name_that_databases_reject_is_escaped(ledger: Ledger) -> None:
    hostile = dataclasses.replace(a_submission(), name="\0\udc80\x1b[2J" + "k" * 300 + ".py")
    number = ledger.submit("ada", "softmax", DIGEST, hostile)
    name = job(ledger, number).name
    assert name.startswith(r"\x00\udc80\x1b[2J")
    assert len(name) == 200


def test_a_source_over_the_limit_is_not_stored(ledger: Ledger) -> None:
    large = dataclasses.replace(a_submission(), source=bytes(MAX_SOURCE_BYTES + 1))
    with pytest.raises(ValueError, match="16,777,216 bytes"):
        ledger.submit("ada", "softmax", DIGEST, large)
    assert ledger.queue() == []


def test_no_submission_is_accepted_from_the_deadline_on(ledger: Ledger, clock: Clock) -> None:
    deadline = clock() + timedelta(seconds=10)
    enqueue(ledger, deadline=deadline)
    clock.move(10)
    with pytest.raises(DeadlinePassed, match="the deadline of softmax was 2030-01-01 00:00 UTC"):
        enqueue(ledger, deadline=deadline)
    assert len(ledger.queue()) == 1


def test_a_user_has_a_limit_of_jobs_in_flight(ledger: Ledger, report_of: MakeReport) -> None:
    enqueue(ledger, max_in_flight=2)
    enqueue(ledger, max_in_flight=2)
    lease = begun(ledger)
    with pytest.raises(TooManyInFlight, match="ada has 2 submissions unfinished") as caught:
        enqueue(ledger, max_in_flight=2)
    assert caught.value.retry_after_s > 0
    enqueue(ledger, "bob", max_in_flight=2)
    assert ledger.finish(lease, report_of()) == 1
    assert enqueue(ledger, max_in_flight=2) == 4, "a refused submission uses up no id"


def test_the_queue_has_a_limit(ledger: Ledger) -> None:
    for user in ("ada", "bob"):
        enqueue(ledger, user, max_queue=2)
    with pytest.raises(QueueFull, match="2 submissions wait already"):
        enqueue(ledger, "cy", max_queue=2)
    claim(ledger)
    assert enqueue(ledger, "cy", max_queue=2) == 3


def test_a_held_job_does_not_count_toward_limits(
    ledger: Ledger, clock: Clock, report_of: MakeReport
) -> None:
    bring_to(ledger, clock, State.HELD, report_of())
    assert enqueue(ledger, max_in_flight=1, max_queue=1) == 2


def test_jobs_are_claimed_oldest_first(ledger: Ledger) -> None:
    numbers = [enqueue(ledger, source=f"x = {i}") for i in range(3)]
    assert [claim(ledger).submission_id for _ in numbers] == numbers


def test_a_worker_takes_only_what_it_can_run(ledger: Ledger) -> None:
    ledger.submit("ada", "softmax", DIGEST, a_submission(), "H200")
    ledger.submit("ada", "softmax", DIGEST, a_submission())
    ledger.submit("ada", "int4_matmul", DIGEST, a_submission(), "H100")

    def taken(problems: list[str] | None, gpu: str | None) -> int | None:
        lease = ledger.claim("w", lease_s=LEASE_S, problems=problems, gpu=gpu)
        return None if lease is None else lease.submission_id

    assert taken([], "H100") is None
    assert taken(["flash_attention"], "H100") is None
    assert taken(["int4_matmul"], None) is None
    assert taken(["softmax"], "H100") == 2
    assert taken(["softmax", "int4_matmul"], "H100") == 3
    assert taken(None, "H100") is None
    assert taken(None, "H200") == 1


def test_heartbeats_keep_a_lease(ledger: Ledger, clock: Clock) -> None:
    enqueue(ledger)
    lease = begun(ledger)
    for _ in range(5):
        clock.move(LEASE_S - 1)
        assert ledger.sweep() == 0
        assert ledger.heartbeat(lease, LEASE_S)
    assert job(ledger, 1).lease_until == clock() + timedelta(seconds=LEASE_S)
    clock.move(LEASE_S + 1)
    assert ledger.heartbeat(lease, LEASE_S), "expired, but not swept"
    assert ledger.sweep() == 0


def test_a_job_that_kills_its_workers_is_held(ledger: Ledger, clock: Clock) -> None:
    enqueue(ledger)
    for deaths in range(1, MAX_FAILURES + 1):
        assert job(ledger, 1).state is State.QUEUED
        begun(ledger)
        clock.move(LEASE_S + 1)
        assert ledger.sweep() == 1
        assert job(ledger, 1).deaths == deaths
    (held,) = ledger.held()
    assert held.state is State.HELD
    assert held.held_reason == "3 workers died while grading it"
    assert ledger.queue() == []
    assert ledger.release(1)
    after = job(ledger, 1)
    assert (after.state, after.deaths, after.held_reason) == (State.QUEUED, 0, None)


def test_judge_errors_are_retried_after_growing_delays_then_held(
    ledger: Ledger, clock: Clock
) -> None:
    enqueue(ledger)
    for pause_s in RETRY_DELAYS_S:
        assert ledger.fail(begun(ledger), "no GPU")
        assert job(ledger, 1).not_before == clock() + timedelta(seconds=pause_s)
        clock.move(pause_s - 1)
        assert ledger.claim("w", lease_s=LEASE_S) is None
        clock.move(1)
    assert ledger.fail(begun(ledger), "the GPU\nfell \x1b off")
    held = job(ledger, 1)
    assert (held.state, held.failures) == (State.HELD, 3)
    assert held.held_reason == r"the GPU fell \x1b off"
    assert held.not_before is None
    assert sorted(RETRY_DELAYS_S) == list(RETRY_DELAYS_S)
    assert len(RETRY_DELAYS_S) == MAX_FAILURES - 1


def test_a_delayed_job_does_not_block_the_next(ledger: Ledger) -> None:
    enqueue(ledger)
    enqueue(ledger)
    assert ledger.fail(begun(ledger), "no GPU")
    assert claim(ledger).submission_id == 2


def test_a_job_given_back_keeps_its_place(ledger: Ledger) -> None:
    enqueue(ledger)
    enqueue(ledger)
    before = job(ledger, 1)
    assert ledger.give_back(begun(ledger))
    assert job(ledger, 1) == before
    assert claim(ledger).submission_id == 1


def test_a_result_is_on_the_board_with_its_user_and_source(
    ledger: Ledger, url: str, report_of: MakeReport
) -> None:
    enqueue(ledger, "bob", "x = 7")
    report = report_of("x = 7")
    number = ledger.finish(begun(ledger), report)
    done = job(ledger, 1)
    assert (done.state, done.result_id, done.leased_by) == (State.DONE, number, "w1")
    board = Board.open(url)
    stored = board.result(number or 0)
    board.close()
    assert (stored.user, stored.source) == ("bob", b"x = 7")
    assert stored.report == report.model_copy(update={"id": number})


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "judge_error"},
        {"verdict": None},
        {"submission_sha256": "0" * 64},
        {"problem": "int4_matmul"},
        {"problem_digest": "e" * 64},
    ],
)
def test_a_report_of_another_submission_changes_nothing(
    ledger: Ledger, report_of: MakeReport, changes: dict[str, object]
) -> None:
    enqueue(ledger)
    lease = begun(ledger)
    before = job(ledger, 1)
    with pytest.raises(ValueError, match=r"verdict|report is not one of submission 1"):
        ledger.finish(lease, Report.model_validate(report_of().model_dump() | changes))
    assert job(ledger, 1) == before
    assert results_of(ledger) == 0
    assert ledger.finish(lease, report_of()) is not None, "the lease is still valid"


def test_a_result_after_cancelling_is_dropped(ledger: Ledger, report_of: MakeReport) -> None:
    enqueue(ledger)
    lease = begun(ledger)
    lease_holder = job(ledger, 1).leased_by
    assert ledger.cancel(1, "bob")
    assert not ledger.heartbeat(lease, LEASE_S)
    assert ledger.finish(lease, report_of()) is None
    cancelled = job(ledger, 1)
    assert (cancelled.state, cancelled.cancelled_by) == (State.CANCELLED, "bob")
    assert (cancelled.leased_by, cancelled.lease_until) == (lease_holder, None)
    assert results_of(ledger) == 0


def test_the_queue_in_order(ledger: Ledger, report_of: MakeReport) -> None:
    for i in range(5):
        enqueue(ledger, source=f"x = {i}")
    assert ledger.finish(begun(ledger), report_of("x = 0")) is not None
    assert ledger.cancel(3, "ada")
    second = claim(ledger)
    expected = [(2, State.LEASED, None), (4, State.QUEUED, 1), (5, State.QUEUED, 2)]
    assert [(j.submission_id, j.state, j.position) for j in ledger.queue()] == expected
    assert ledger.give_back(second)
    positions = {number: job(ledger, number).position for number in range(1, 6)}
    assert positions == {1: None, 2: 1, 3: None, 4: 2, 5: 3}
    assert ledger.queue() == [job(ledger, number) for number in (2, 4, 5)]


def test_the_head_of_the_queue(ledger: Ledger) -> None:
    versions = [ledger.queue_version()]
    for number in range(1, 5):
        enqueue(ledger, user=f"user{number}", source=f"x = {number}")
        versions.append(ledger.queue_version())
    lease = begun(ledger)
    versions.append(ledger.queue_version())
    head = ledger.queue_head({"softmax"}, 2)
    assert head.jobs == ledger.queue()[:2]
    assert [place[:2] for place in head.places] == [(n, f"user{n}") for n in range(1, 5)]
    assert [place.position for place in head.places] == [None, 1, 2, 3]
    assert [place.state for place in head.places] == [State.RUNNING] + 3 * [State.QUEUED]
    assert ledger.queue_head({"other"}, 2).places == []
    assert ledger.cancel(4, "ada")
    versions.append(ledger.queue_version())
    assert ledger.fail(lease, "broken")
    versions.append(ledger.queue_version())
    assert all(before != after for before, after in pairwise(versions))
    assert versions[-1] == ledger.queue_version()


def test_the_version_of_one_users_queue(ledger: Ledger) -> None:
    versions = [ledger.queue_version("ada")]
    enqueue(ledger, user="ada")
    versions.append(ledger.queue_version("ada"))
    enqueue(ledger, user="bob", source="x = 2")
    assert ledger.queue_version("ada") == versions[-1]
    lease = begun(ledger)
    versions.append(ledger.queue_version("ada"))
    assert ledger.cancel(2, "bob")
    assert ledger.queue_version("ada") == versions[-1]
    assert ledger.fail(lease, "broken")
    versions.append(ledger.queue_version("ada"))
    assert all(before != after for before, after in pairwise(versions))


def test_a_heartbeat_changes_the_version_of_the_queue(ledger: Ledger, clock: Clock) -> None:
    enqueue(ledger)
    lease, before = begun(ledger), ledger.queue_version()
    clock.move(1)
    assert ledger.heartbeat(lease, 60, Progress("test", "tiny", 0, 2))
    assert ledger.queue_version() != before


@pytest.mark.parametrize("number", [-1, 0, 17, 2**31, 2**63, 10**30])
def test_no_such_submission(ledger: Ledger, number: int) -> None:
    enqueue(ledger)
    assert ledger.job(number) is None
    assert not ledger.cancel(number, "ada")
    assert not ledger.release(number)


def test_no_such_result_on_either_database(ledger: Ledger) -> None:
    for number in (0, 17, 2**31, 2**63):
        with pytest.raises(BoardError, match=f"no result {number}"):
            ledger.board.result(number)


def test_a_result_belongs_to_one_job(ledger: Ledger, report_of: MakeReport) -> None:
    numbers = []
    for source in ("x = 1", "x = 1", "x = 2"):
        enqueue(ledger, source=source)
        numbers.append(ledger.finish(begun(ledger), report_of(source)))
    assert numbers == [1, 2, 3]
    with ledger._engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(results)) == 3


def test_expired_workers_are_removed(ledger: Ledger, clock: Clock) -> None:
    for day in range(4):
        ledger.announce(Worker(f"pod-{day}", "http", "cpu", None, 1))
        ledger.announce(Worker("steady", "http", "cpu", None, 1))
        clock.move(86_000)
    assert [worker.name for worker in ledger.workers(1e7)] == ["pod-2", "pod-3", "steady"]


def test_a_result_above_the_roofline_is_held(
    ledger: Ledger, clock: Clock, report_of: MakeReport
) -> None:
    """Whatever verdict its worker gave, an admin decides whether it counts."""

    def graded(sol: float, **more: Any) -> int:
        number = enqueue(ledger)
        case = report_of().cases[1].model_copy(update={"sol": sol})
        report = report_of(cases=[case], score_us=50 / sol, score_ci_us=None, **more)
        assert ledger.finish(begun(ledger), report)
        return number

    def best() -> list[float]:
        return [e.score_us for e in ledger.board.leaderboard(DIGEST, "NVIDIA H100 80GB HBM3")]

    graded(1.0)
    fast = graded(1.0 / FLOOR_SHARE + 0.01)
    rejected = graded(0.5, verdict="rejected", rule="below_floor")
    assert best() == [50.0]
    admin = AdminService(ledger._engine, clock)
    held = admin.held_results()
    assert [(one.submission_id, one.by) for one in held] == [(fast, ROOFLINE), (rejected, ROOFLINE)]
    assert admin.release(fast, "root")
    assert admin.release(rejected, "root")
    assert best() == [50.0 / (1.0 / FLOOR_SHARE + 0.01)]
    assert admin.held_results() == []


def test_a_repeated_submission_is_stored_once(ledger: Ledger, clock: Clock) -> None:
    """Its answer may have been lost; limits and the deadline do not refuse the repetition."""
    deadline = clock() + timedelta(seconds=10)
    first = enqueue(ledger, idempotency_key="k", deadline=deadline)
    clock.move(20)
    again = enqueue(ledger, idempotency_key="k", deadline=deadline, max_in_flight=1)
    assert again == first
    assert [one.submission_id for one in ledger.queue()] == [first]
    with pytest.raises(KeyReused, match=f"this key belongs to submission {first}, of another file"):
        enqueue(ledger, source="x = 2", idempotency_key="k")
    with pytest.raises(KeyReused):
        enqueue(ledger, gpu="H100", idempotency_key="k")
    assert enqueue(ledger, "bob", idempotency_key="k") != first, "keys are each user's own"
    assert enqueue(ledger) != enqueue(ledger), "without a key nothing is a repetition"
