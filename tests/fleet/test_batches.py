"""Batches in the ledger, on both databases: their lane, their turns, and their results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from grader.fleet import (
    BatchItem,
    DeadlinePassed,
    Lease,
    Ledger,
    QueueFull,
    QuotaExceeded,
    State,
    TooManyInFlight,
)
from grader.fleet.job import Batch, BatchResult, KeyReused
from grader.report import Report
from tests.fleet.conftest import DIGEST, Clock, a_submission, enqueue

MakeReport = Callable[..., Report]
H100 = "NVIDIA H100 80GB HBM3"


def items(*keys: str, **more: Any) -> list[BatchItem]:
    return [BatchItem(key, a_submission(f"x = {key!r}"), **more) for key in keys]


def hand_in(ledger: Ledger, *keys: str, user: str = "ada", **more: Any) -> int:
    return ledger.submit_batch(user, "softmax", DIGEST, items(*keys), **more)


def claim(ledger: Ledger, **more: Any) -> Lease:
    lease = ledger.claim("w", lease_s=60, **more)
    assert lease is not None
    return lease


def key_of(lease: Lease) -> str:
    """The key of a leased item, of which `items` makes the source."""
    return lease.source.decode().removeprefix("x = ").strip("'")


def end(ledger: Ledger, report_of: MakeReport, lease: Lease, **changes: Any) -> int:
    assert ledger.begin(lease)
    place = ledger.finish(lease, report_of(lease.source.decode(), **changes))
    assert place is not None
    return place


def the(batch: Batch | None) -> Batch:
    assert batch is not None
    return batch


def results(ledger: Ledger, batch_id: int, after: int = 0) -> list[BatchResult]:
    return ledger.batch_results(batch_id, after, 100)


def test_items_are_graded_and_kept_off_the_board(ledger: Ledger, report_of: MakeReport) -> None:
    number = hand_in(ledger, "a", "b")
    assert the(ledger.batch(number)).states == {State.QUEUED: 2}
    first, second = claim(ledger), claim(ledger)
    assert end(ledger, report_of, second) == 1
    assert end(ledger, report_of, first) == 2
    batch = the(ledger.batch(number))
    assert batch.states == {State.DONE: 2}
    assert batch.closed_at is not None
    found = results(ledger, number)
    assert [(one.place, one.key, one.error) for one in found] == [(1, "b", None), (2, "a", None)]
    report = Report.model_validate_json(found[0].report or "")
    assert report.submission_sha256 == a_submission("x = 'b'").sha256
    assert not report.ranked
    assert [one.key for one in results(ledger, number, after=1)] == ["a"]
    assert results(ledger, number, after=2) == []
    assert ledger.board.count("softmax") == 0
    job = ledger.job(first.submission_id)
    assert job is not None
    assert (job.result_id, job.batch_id) == (None, number)


def test_submissions_and_rejudges_go_first(ledger: Ledger, report_of: MakeReport) -> None:
    hand_in(ledger, "a", "b")
    mine = enqueue(ledger, "bob")
    assert claim(ledger).submission_id == mine
    assert key_of(claim(ledger)) == "a"
    later = enqueue(ledger, "bob")
    assert claim(ledger).submission_id == later
    assert key_of(claim(ledger)) == "b"
    assert ledger.claim("w", lease_s=60) is None


def test_a_batch_is_not_in_the_queue(ledger: Ledger) -> None:
    before = ledger.queue_version()
    hand_in(ledger, "a", "b")
    number = enqueue(ledger, "bob")
    (job,) = ledger.queue()
    assert (job.submission_id, job.position) == (number, 1)
    assert [place.position for place in ledger.queue_head(["softmax"], 9).places] == [1]
    found = ledger.job(number)
    assert found is not None
    assert found.position == 1
    assert ledger.cancel(number, "bob")
    assert ledger.queue_version() == before


def test_users_take_turns(ledger: Ledger, clock: Clock) -> None:
    hand_in(ledger, "a1", "a2", "a3")
    hand_in(ledger, "a4")
    hand_in(ledger, "b1", "b2", user="bob")
    taken = []
    for _ in range(6):
        clock.move(1)
        taken.append(key_of(claim(ledger)))
    assert taken == ["a1", "b1", "a2", "b2", "a3", "a4"]


def test_an_item_goes_to_a_worker_that_can_grade_it(ledger: Ledger) -> None:
    hand_in(ledger, "a", gpu="H100")
    hand_in(ledger, "b", user="bob")
    assert key_of(claim(ledger, gpu=None)) == "b"
    assert ledger.claim("w", lease_s=60, gpu="NVIDIA L4") is None
    assert ledger.claim("w", lease_s=60, gpu=H100, problems={"softmax": "e" * 64}) is None
    assert ledger.claim("w", lease_s=60, gpu=H100, languages=["cuda"]) is None
    assert key_of(claim(ledger, gpu=H100, problems={"softmax": DIGEST})) == "a"


def test_what_is_not_to_be_timed(ledger: Ledger) -> None:
    ledger.submit_batch("ada", "softmax", DIGEST, items("a", benchmarks=False) + items("b"))
    assert [claim(ledger).benchmarks for _ in range(2)] == [False, True]
    enqueue(ledger)
    assert claim(ledger).benchmarks


def test_a_key_hands_in_once(ledger: Ledger) -> None:
    number = hand_in(ledger, "a", "b", idempotency_key="k", max_in_flight=2)
    assert hand_in(ledger, "a", "b", idempotency_key="k", max_in_flight=2) == number
    assert the(ledger.batch(number)).items == 2
    for other in (items("a"), items("a", "b", benchmarks=False), items("b", "a")):
        with pytest.raises(KeyReused, match=f"belongs to batch {number}"):
            ledger.submit_batch("ada", "softmax", DIGEST, other, idempotency_key="k")
    assert hand_in(ledger, "a", "b", user="bob", idempotency_key="k") != number


def test_limits(ledger: Ledger, clock: Clock) -> None:
    hand_in(ledger, "a", "b", max_in_flight=2, max_queue=2)
    with pytest.raises(TooManyInFlight, match="ada has 2 items of batches unfinished, and 1 more"):
        hand_in(ledger, "c", max_in_flight=2)
    with pytest.raises(QueueFull, match="2 items of batches wait already, and 1 more"):
        hand_in(ledger, "c", user="bob", max_queue=2)
    with pytest.raises(QuotaExceeded):
        hand_in(ledger, "c", max_stored_bytes=20)
    with pytest.raises(DeadlinePassed):
        hand_in(ledger, "c", deadline=clock())
    for wrong in ([], items("a", "a")):
        with pytest.raises(ValueError, match="at least one item"):
            ledger.submit_batch("ada", "softmax", DIGEST, wrong)
    enqueue(ledger, max_in_flight=1, max_queue=1)  # batches do not count here
    with pytest.raises(TooManyInFlight):
        enqueue(ledger, max_in_flight=1)


def test_cancelling(ledger: Ledger, report_of: MakeReport) -> None:
    number = hand_in(ledger, "a", "b", "c")
    done, running = claim(ledger), claim(ledger)
    end(ledger, report_of, done)
    assert ledger.begin(running)
    assert ledger.cancel_batch(number, "ada")
    batch = the(ledger.batch(number))
    assert (batch.states, batch.cancelled_by) == ({State.DONE: 1, State.CANCELLED: 2}, "ada")
    assert batch.closed_at is not None
    assert ledger.finish(running, report_of("x = 'b'")) is None
    assert [one.key for one in results(ledger, number)] == ["a"]
    assert not ledger.cancel_batch(number, "ada")
    assert not ledger.cancel_batch(number + 1, "ada")
    assert ledger.claim("w", lease_s=60) is None


def test_an_item_that_cannot_be_graded_has_an_error(
    ledger: Ledger, clock: Clock, report_of: MakeReport
) -> None:
    number = hand_in(ledger, "a")
    for _ in range(3):
        assert the(ledger.batch(number)).closed_at is None
        assert ledger.fail(claim(ledger), "no sandbox starts")
        clock.move(100)
    batch = the(ledger.batch(number))
    assert batch.states == {State.HELD: 1}
    assert batch.closed_at is not None
    assert results(ledger, number) == [BatchResult(1, "a", None, "no sandbox starts", None)]
    # An admin has found the cause.
    (held,) = ledger.held()
    assert ledger.release(held.submission_id)
    assert the(ledger.batch(number)).closed_at is None
    assert results(ledger, number) == []
    assert end(ledger, report_of, claim(ledger)) == 2
    assert the(ledger.batch(number)).closed_at is not None
    (late,) = results(ledger, number, after=1)
    assert late.report is not None
    assert late.error is None


def test_an_item_whose_workers_die_has_an_error(ledger: Ledger, clock: Clock) -> None:
    number = hand_in(ledger, "a")
    for _ in range(3):
        assert results(ledger, number) == []
        claim(ledger)
        clock.move(100)
        ledger.sweep()
    assert [one.error for one in results(ledger, number)] == ["3 workers died while grading it"]
    assert the(ledger.batch(number)).closed_at is not None


def test_an_item_of_an_old_version_has_an_error(ledger: Ledger) -> None:
    number = hand_in(ledger, "a", "b")
    running = claim(ledger)
    ledger.hold_outdated({"softmax": "e" * 64})
    (one,) = results(ledger, number)
    assert (one.key, one.error) == ("b", "the problem has changed since this was submitted")
    assert the(ledger.batch(number)).closed_at is None
    assert ledger.cancel(running.submission_id, "root")
    assert the(ledger.batch(number)).closed_at is not None


def test_a_given_back_item_waits_again(ledger: Ledger) -> None:
    number = hand_in(ledger, "a")
    assert ledger.give_back(claim(ledger))
    assert the(ledger.batch(number)).states == {State.QUEUED: 1}
    assert key_of(claim(ledger)) == "a"


def test_a_user_lists_batches(ledger: Ledger) -> None:
    numbers = [hand_in(ledger, "a") for _ in range(3)]
    hand_in(ledger, "a", user="bob")
    assert [one.id for one in ledger.batches("ada", 2)] == [numbers[2], numbers[1]]
    assert [one.id for one in ledger.batches("ada", 2, numbers[1])] == [numbers[0]]
    assert ledger.batches("eve", 2) == []
    assert ledger.batch(99) is None
    assert ledger.batch(-1) is None


def test_old_reports_and_sources_are_removed(
    ledger: Ledger, clock: Clock, report_of: MakeReport
) -> None:
    old, unfinished = hand_in(ledger, "a", "b"), hand_in(ledger, "c", user="bob")
    end(ledger, report_of, claim(ledger))
    assert ledger.cancel_batch(old, "ada")
    clock.move(10)
    assert ledger.remove_old_batches(clock() - timedelta(seconds=20), limit=9) == 0
    clock.move(60)
    before = ledger.storage().source_bytes
    assert ledger.remove_old_batches(clock() - timedelta(seconds=20), limit=9) == 1
    assert ledger.remove_old_batches(clock() - timedelta(seconds=20), limit=9) == 0
    assert the(ledger.batch(old)).removed_at == clock()
    assert [one.report for one in results(ledger, old)] == [None]
    assert ledger.storage().source_bytes == before - 2 * len("x = 'a'")
    assert the(ledger.batch(unfinished)).removed_at is None
    assert key_of(claim(ledger)) == "c"
    # The same file may be handed in again.
    hand_in(ledger, "a")
    assert key_of(claim(ledger)) == "a"


def test_equal_sources_are_stored_once(ledger: Ledger) -> None:
    same = [BatchItem(key, a_submission()) for key in ("a", "b", "c")]
    ledger.submit_batch("ada", "softmax", DIGEST, same)
    assert ledger.storage().source_bytes == 3 * len(a_submission().source)
    assert {claim(ledger).source for _ in same} == {a_submission().source}
