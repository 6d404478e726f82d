from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from grader.fleet import BatchItem, Ledger, TooManyInFlight
from grader.fleet.job import DailyLimitReached
from grader.report import Report
from tests.fleet.conftest import DIGEST, Clock, a_submission, enqueue
from tests.fleet.test_hosted import rejudged
from tests.fleet.test_ledger import begun, claim
from tests.fleet.test_races import at_once

HOUR_S = 3600.0


def submit(ledger: Ledger, user: str = "ada", limit: int | None = 2) -> int:
    return enqueue(ledger, user, daily_limit=limit, max_in_flight=99)


def test_the_window_slides(ledger: Ledger, clock: Clock) -> None:
    submit(ledger)
    clock.move(10 * HOUR_S)
    submit(ledger)
    clock.move(3 * HOUR_S + 0.5)
    with pytest.raises(DailyLimitReached) as caught:
        submit(ledger)
    assert str(caught.value) == (
        "ada has submitted 2 files to softmax in the last 24 hours, which is the limit; the next "
        "may come at 2030-01-02 00:00:00 UTC"
    )
    clock.move(caught.value.retry_after_s - 1)
    with pytest.raises(DailyLimitReached):
        submit(ledger)
    clock.move(1)
    submit(ledger)
    with pytest.raises(DailyLimitReached) as caught:
        submit(ledger)
    assert timedelta(seconds=caught.value.retry_after_s) <= timedelta(hours=10)


def test_a_lower_limit_is_kept_until_enough_have_left(ledger: Ledger, clock: Clock) -> None:
    for _ in range(4):
        submit(ledger, limit=None)
        clock.move(HOUR_S)
    with pytest.raises(DailyLimitReached) as caught:
        submit(ledger)
    assert caught.value.retry_after_s == 22 * HOUR_S, "until the third has left"
    clock.move(22 * HOUR_S)
    submit(ledger)


def test_users_and_problems_are_counted_apart(ledger: Ledger) -> None:
    for user in ("ada", "bob"):
        submit(ledger, user, 1)
    ledger.submit("ada", "gelu", DIGEST, a_submission(), daily_limit=1)
    assert ledger.submitted_in_a_day("ada") == {"softmax": 1, "gelu": 1}
    assert ledger.submitted_in_a_day("bob") == {"softmax": 1}


def test_what_no_worker_had_does_not_count_once_cancelled(ledger: Ledger) -> None:
    first = submit(ledger)
    second = submit(ledger)
    assert ledger.cancel(second, "ada")
    assert claim(ledger).submission_id == first
    assert ledger.cancel(first, "ada")
    assert ledger.submitted_in_a_day("ada") == {"softmax": 1}
    submit(ledger)
    with pytest.raises(DailyLimitReached):
        submit(ledger)


def test_graded_submissions_count(ledger: Ledger, report_of: Callable[..., Report]) -> None:
    submit(ledger, limit=1)
    assert ledger.finish(begun(ledger), report_of()) is not None
    with pytest.raises(DailyLimitReached):
        submit(ledger, limit=1)


def test_rejudges_and_batches_do_not_count(ledger: Ledger) -> None:
    ledger.submit_batch("ada", "softmax", DIGEST, [BatchItem("a", a_submission())])
    rejudged(ledger, submit(ledger))
    assert ledger.submitted_in_a_day("ada") == {}


def test_a_repeated_request_is_answered_beyond_the_limit(ledger: Ledger) -> None:
    number = enqueue(ledger, daily_limit=1, idempotency_key="k")
    assert enqueue(ledger, daily_limit=1, idempotency_key="k") == number


def test_the_limit_holds_for_concurrent_submits(ledger: Ledger) -> None:
    def is_taken() -> bool:
        try:
            submit(ledger, limit=5)
        except (DailyLimitReached, TooManyInFlight):
            return False
        return True

    assert sum(at_once(*[is_taken] * 12)) == 5
    assert ledger.submitted_in_a_day("ada") == {"softmax": 5}
