"""Which sources are removed, what stays, and what a removal changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from grader.db.tables import blobs
from grader.fleet import Ledger, QuotaExceeded, State
from grader.report import Report
from grader.server.services import Invalid
from grader.server.services.accounts import Accounts
from grader.server.services.admin_service import AdminService
from grader.server.services.source_retention import SourceRetention
from grader.server.services.submission_queries import SubmissionQueries
from tests.fleet.conftest import DIGEST, Clock, a_submission, enqueue

MakeReport = Callable[..., Report]
DAY_S = 86_400.0
KEEP_DAYS = 30.0
BATCH_DAYS = 7.0
H100 = "NVIDIA H100 80GB HBM3"
L4 = "NVIDIA L4"
NEXT = "e" * 64


class Shop:
    """Submits and grades without a worker; each source differs unless it is given."""

    def __init__(self, ledger: Ledger, report_of: MakeReport, clock: Clock) -> None:
        self.ledger = ledger
        self.admin = AdminService(ledger._engine, clock)
        self.queries = SubmissionQueries(ledger._engine)
        self._report_of = report_of
        self._retention = SourceRetention(ledger, KEEP_DAYS, clock, BATCH_DAYS)
        self._sources: dict[int, str] = {}
        self._clock = clock

    def submitted(self, user: str = "ada", source: str | None = None, digest: str = DIGEST) -> int:
        source = source or f"x = {len(self._sources)}"
        number = self.ledger.submit(user, "softmax", digest, a_submission(source))
        self._sources[number] = source
        return number

    def graded(self, score_us: float | None, user: str = "ada", **more: Any) -> int:
        number = self.submitted(user, more.pop("source", None), more.get("problem_digest", DIGEST))
        self.grade(score_us, source=self._sources[number], **more)
        return number

    def grade(self, score_us: float | None, source: str, gpu: str = H100, **more: Any) -> int:
        lease = self.ledger.claim("farm/a", lease_s=60, gpu=gpu)
        assert lease is not None
        assert lease.source.decode() == source
        assert self.ledger.begin(lease)
        score = {"score_us": score_us, "score_ci_us": score_us and (score_us - 1, score_us + 1)}
        report = self._report_of(source, gpu=gpu, ranked=score_us is not None, **score | more)
        result = self.ledger.finish(lease, report)
        assert result is not None
        return result

    def regrade(self, score_us: float, original: int) -> int:
        return self.grade(score_us, self._sources[original])

    def remove_old(self) -> int:
        """Run the retention once all is older than its days. Returns how many it removed."""
        self._clock.move((KEEP_DAYS + 1) * DAY_S)
        return self._retention.run_pass(pause_s=0)

    def kept(self) -> list[int]:
        """The submissions whose sources can be read."""
        return [number for number in range(1, 100) if self.queries.source(number) is not None]

    def blobs(self) -> dict[str, bytes]:
        with self.ledger._engine.connect() as connection:
            rows = connection.execute(select(blobs.c.sha256, blobs.c.content))
            return {digest: bytes(content) for digest, content in rows}

    def used(self) -> int:
        return self.ledger.storage().source_bytes


@pytest.fixture
def shop(ledger: Ledger, report_of: MakeReport, clock: Clock) -> Shop:
    return Shop(ledger, report_of, clock)


def test_only_the_best_of_a_user_keep_their_sources(shop: Shop) -> None:
    shop.graded(60)
    best = shop.graded(50)
    shop.graded(70)
    elsewhere = shop.graded(90, gpu=L4)
    version = shop.graded(80, problem_digest=NEXT)
    shop.graded(None, verdict="wrong_answer", reason="wrong")
    bob = shop.graded(65, user="bob")
    assert shop.remove_old() == 3
    assert shop.kept() == [best, elsewhere, version, bob]
    assert shop.remove_old() == 0
    assert shop.graded(40) > bob, "which makes the old best superfluous"
    assert shop.remove_old() == 1
    assert best not in shop.kept()


def test_young_ones_stay(shop: Shop, clock: Clock) -> None:
    old = shop.graded(None, verdict="wrong_answer")
    clock.move(DAY_S)
    young = shop.graded(None, verdict="wrong_answer")
    clock.move((KEEP_DAYS - 0.5) * DAY_S)
    retention = SourceRetention(shop.ledger, KEEP_DAYS, clock, BATCH_DAYS)
    assert (retention.run_pass(pause_s=0), shop.kept()) == (1, [young])
    assert SourceRetention(shop.ledger, 36500.0, clock, BATCH_DAYS).run_pass(pause_s=0) == 0
    assert SourceRetention(shop.ledger, 1e11, clock, BATCH_DAYS).run_pass(pause_s=0) == 0, (
        "before any date"
    )
    assert old not in shop.kept()


def test_what_is_not_decided_stays(shop: Shop) -> None:
    suspect = shop.graded(10)
    with_hold = shop.admin
    Accounts(shop.ledger._engine, Clock()).add_user("farm", "worker")
    assert with_hold.hold("farm", "root") == 1
    cancelled = shop.submitted()
    assert shop.ledger.cancel(cancelled, "ada")
    failing = shop.submitted()
    for _ in range(3):
        lease = shop.ledger.claim("w", lease_s=60)
        assert lease is not None
        assert shop.ledger.fail(lease, "broken")
        shop._clock.move(100)
    waiting = shop.submitted()
    running = shop.ledger.claim("w", lease_s=60)
    assert running is not None
    queued = shop.submitted()
    job = shop.ledger.job(failing)
    assert job is not None
    assert job.state is State.HELD
    assert shop.remove_old() == 1
    assert shop.kept() == [suspect, failing, waiting, queued]


def test_a_rejudge_keeps_what_it_grades_until_it_is_decided(shop: Shop) -> None:
    best, slower = shop.graded(50), shop.graded(60)
    number = shop.admin.rejudges.start("softmax", DIGEST, "accepted", reason="", by="root")
    assert shop.remove_old() == 0
    shop.regrade(51, best)
    assert shop.remove_old() == 0
    shop.regrade(61, slower)
    shop.admin.rejudges.apply(number, "root")
    assert shop.remove_old() == 3, "both originals, and the slower copy"
    copy = 3
    assert shop.kept() == [copy]
    assert shop.queries.source(copy) == b"x = 0", "which it has in common with its original"


def test_a_dropped_rejudge_keeps_nothing(shop: Shop) -> None:
    best = shop.graded(50)
    number = shop.admin.rejudges.start("softmax", DIGEST, "best", reason="", by="root")
    shop.regrade(40, best)
    shop.admin.rejudges.drop(number, "root")
    assert shop.remove_old() == 1
    assert shop.kept() == [best]


def test_the_best_of_a_banned_user_stays(shop: Shop) -> None:
    Accounts(shop.ledger._engine, Clock()).add_user("ada")
    best, slower = shop.graded(50), shop.graded(60)
    shop.admin.ban("ada", "", "root")
    assert (shop.remove_old(), shop.kept()) == (1, [best])
    shop.admin.unban("ada", "root")
    assert shop.admin.delete(best, "root") == "deleted"
    assert (shop.remove_old(), shop.kept()) == (1, [])
    assert slower


def test_results_and_digests_stay(shop: Shop) -> None:
    number = shop.graded(None, verdict="wrong_answer", reason="off by one")
    before = shop.ledger.board.result(1)
    assert not before.source_was_removed
    shop.remove_old()
    after = shop.ledger.board.result(1)
    assert (after.report, after.user, after.source) == (before.report, "ada", b"")
    assert after.source_was_removed
    summary = shop.queries.summary(number)
    assert summary is not None
    assert summary.source_removed_at == shop._clock()
    job = shop.ledger.job(number)
    assert job is not None
    assert list(shop.blobs().items()) == [(job.sha256, b"")]


def test_equal_sources_are_stored_as_long_as_one_is_kept(shop: Shop) -> None:
    same = "x = 'the same'"
    first = shop.graded(60, source=same)
    best = shop.graded(50, user="bob", source=same)
    assert shop.remove_old() == 0
    better = shop.graded(40)
    assert (shop.remove_old(), shop.kept()) == (1, [best, better])
    assert same.encode() in shop.blobs().values()
    shop.graded(30, user="bob")
    assert shop.remove_old() == 1
    assert same.encode() not in shop.blobs().values()
    again = shop.graded(None, verdict="wrong_answer", source=same)
    assert shop.queries.source(again) == same.encode()
    assert shop.queries.source(first) is None, "the removal of another's stays"


def test_an_empty_source_is_not_a_removed_one(shop: Shop, ledger: Ledger) -> None:
    empty = a_submission("")
    for _ in range(2):
        number = ledger.submit("ada", "softmax", DIGEST, empty)
    assert shop.queries.source(number) == b""
    lease = ledger.claim("w", lease_s=60)
    assert lease is not None
    assert ledger.begin(lease)
    ledger.finish(lease, shop._report_of("", verdict="compile_error"))
    assert not ledger.board.result(1).source_was_removed


def test_a_pass_sees_all_in_batches(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grader.server.services.source_retention.STEP", 2)
    best = shop.graded(50)
    for _ in range(6):
        shop.graded(60)
    assert (shop.remove_old(), shop.kept()) == (6, [best])


def test_removed_sources_cannot_be_graded_again(shop: Shop) -> None:
    best, slower = shop.graded(50), shop.graded(60)
    rejudges = shop.admin.rejudges
    shop.remove_old()
    with pytest.raises(Invalid, match=f"sources were removed.* graded again: {slower}$"):
        rejudges.start("softmax", DIGEST, [best, slower], reason="", by="root")
    assert rejudges.without_source("softmax", DIGEST, "accepted") == 1
    rejudges.start("softmax", DIGEST, "accepted", reason="", by="root")
    rejudge = rejudges.rejudge(1)
    assert rejudge is not None
    assert rejudge.total == 1
    rejudges.drop(1, "root")
    assert shop.admin.delete(best, "root") == "deleted"
    with pytest.raises(Invalid, match="the sources of all 1 such results of softmax were removed"):
        rejudges.start("softmax", DIGEST, "accepted", reason="", by="root")


class TestQuota:
    def test_it_counts_every_submission_until_its_source_is_removed(self, shop: Shop) -> None:
        shop.graded(50, source="x = 1000")
        shop.graded(60, source="x = 1000")
        shop.admin.rejudges.start("softmax", DIGEST, "best", reason="", by="root")
        cancelled = shop.submitted(source="x = 2000")
        assert shop.ledger.cancel(cancelled, "ada")
        shop.graded(50, user="bob", source="x = 1")
        assert shop.used() == 3 * len("x = 1000") + len("x = 1")
        shop.admin.rejudges.drop(1, "root")
        assert shop.remove_old() == 3
        assert shop.used() == len("x = 1000") + len("x = 1")

    def test_a_submission_over_it_is_refused(self, ledger: Ledger) -> None:
        enqueue(ledger, source="x = 1", max_stored_bytes=10)
        with pytest.raises(QuotaExceeded) as caught:
            enqueue(ledger, source="x = 12", max_stored_bytes=10)
        assert str(caught.value) == (
            "ada's stored sources take 5 of 10 bytes, and this one has 6; wait until old ones are "
            "removed, or ask an admin for more"
        )
        assert enqueue(ledger, "bob", "x = 12", max_stored_bytes=10) == 2
        assert enqueue(ledger, source="x = 3", max_stored_bytes=10) == 3, "exactly as many"
