"""The numbers of verdicts: what counts, who sees which boards, the page, and the JSON."""

from __future__ import annotations

from datetime import timedelta

import pytest

from grader.report import Rule, Verdict
from grader.server.services.admin_service import BoardSettings
from grader.server.services.verdict_counts import VerdictCounts, VerdictSummary
from tests.db.conftest import url as database  # noqa: F401  # on both databases
from tests.server.conftest import World, statements
from tests.server.site import words

UNSCORED = {"ranked": False, "score_us": None, "score_ci_us": None}


def graded(world: World, verdict: Verdict, rule: Rule | None = None, name: str = "ada") -> int:
    return world.graded(name, verdict=verdict, rule=rule, **UNSCORED)


def counted(world: World) -> VerdictSummary:
    """The counts as they are now."""
    return VerdictCounts(world.services.ledger.board._engine).summary(
        dict.fromkeys(world.services.problems)
    )


def test_results_are_counted(world: World) -> None:
    assert counted(world).total.graded == 0
    world.graded("ada")
    graded(world, Verdict.WRONG_ANSWER)
    graded(world, Verdict.COMPILE_ERROR)
    for rule in (Rule.TIME_CLAIM, Rule.TIME_CLAIM, Rule.MEMORY_TAMPERED):
        graded(world, Verdict.REJECTED, rule, "bob")
    found = counted(world)
    total = found.total
    assert (total.graded, total.accepted, total.wrong) == (6, 1, 1)
    assert (total.failed, total.rejected) == (1, 3)
    assert total.rules == {Rule.TIME_CLAIM: 2, Rule.MEMORY_TAMPERED: 1}
    assert found.problems == [("softmax", total)]
    months = {month for month, _ in found.months}
    assert all(len(month) == 7 for month in months)
    assert sum(tally.graded for _, tally in found.months) == 6


def test_months_are_apart_and_the_newest_is_first(world: World) -> None:
    for month, count in (("2030-01", 1), ("2030-02", 2)):
        for _ in range(count):
            world.graded("ada", created_at=f"{month}-03T00:00:00Z")
    found = counted(world)
    assert [(month, tally.graded) for month, tally in found.months] == [
        ("2030-02", 2),
        ("2030-01", 1),
    ]


def test_what_does_not_count(world: World) -> None:
    deleted = graded(world, Verdict.REJECTED, Rule.TIME_CLAIM)
    world.graded("bob")
    world.services.admin.delete(deleted, "root")
    world.services.admin.ban("bob", "", "root")
    # A rejudge counts once, also after it has replaced the first result.
    number = world.graded("ada")
    rejudges = world.services.admin.rejudges
    digest = world.problem.digest
    started = rejudges.start("softmax", digest, [number], reason="", by="root")
    world.grade()
    assert counted(world).total.accepted == 2
    rejudges.apply(started, "root")
    assert counted(world).total.accepted == 2
    # An item of a batch is no result.
    world.batch("ada")
    lease = world.lease()
    world.services.ledger.finish(lease, world.report(lease))
    found = counted(world).total
    assert (found.graded, found.rejected) == (2, 0)


def test_each_rule_is_read_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in a report of up to a few hundred kilobytes."""
    counts = VerdictCounts(world.services.ledger.board._engine)
    monkeypatch.setattr(counts._cache, "_age_s", 0.0)
    graded(world, Verdict.REJECTED, Rule.TIME_CLAIM)

    def reads() -> list[str]:
        """The queries of reports."""
        with statements(world) as seen:
            counts.summary({"softmax": None})
        return [one for one in seen if "report" in one]

    assert len(reads()) == 1
    assert reads() == []
    graded(world, Verdict.REJECTED, Rule.CARRIED_ANSWER)
    assert len(reads()) == 1
    rules = counts.summary({"softmax": None}).total.rules
    assert rules == {Rule.TIME_CLAIM: 1, Rule.CARRIED_ANSWER: 1}


def test_boards_count_after_their_deadline(world: World) -> None:
    graded(world, Verdict.REJECTED, Rule.TIME_CLAIM)
    client, root = world.client(), world.client("root")
    admin, now = world.services.admin, world.clock()

    def total(of_admin: bool = False) -> int:
        found = (root if of_admin else client).get("/api/v1/verdicts").json()
        return int(found["graded"])

    assert total() == 1
    for settings in (BoardSettings(deadline=now + timedelta(days=1)), BoardSettings(hidden=True)):
        admin.set_board("softmax", settings, "root")
        assert (total(), total(of_admin=True)) == (0, 1)
        assert "No result yet" in words(client.get("/verdicts").text)
        assert "grade_results{" not in client.get("/metrics").text
    admin.set_board("softmax", BoardSettings(deadline=now - timedelta(days=1)), "root")
    assert total() == 1
    assert 'grade_results{verdict="rejected"} 1.0' in client.get("/metrics").text


def test_the_page_and_the_json_say_the_same(world: World) -> None:
    world.graded("ada", created_at="2030-02-03T00:00:00Z")
    world.graded(
        "bob",
        verdict=Verdict.REJECTED,
        rule=Rule.WORK_OUTSIDE_CALL,
        created_at="2030-01-03T00:00:00Z",
        **UNSCORED,
    )
    both = {"accepted": 1, "rejected": 1}
    rules = {"work_outside_call": 1}
    assert world.client().get("/api/v1/verdicts").json() == {
        "graded": 2,
        "verdicts": both,
        "rules": rules,
        "problems": {"softmax": {"graded": 2, "verdicts": both, "rules": rules}},
        "months": {
            "2030-02": {"graded": 1, "verdicts": {"accepted": 1}, "rules": {}},
            "2030-01": {"graded": 1, "verdicts": {"rejected": 1}, "rules": rules},
        },
    }
    page = world.client().get("/verdicts").text
    text = words(page)
    assert "Graded 2 Accepted 50 % Rejected 1 By rule" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "work_outside_call Working before the call or after its return. 1" in text
    assert "time_claim Reporting a time that the judge's own clock refutes. –" in text
    assert "2030-02 1 1 – – – 2030-01 1 – – – 1" in text
    assert 'href="/verdicts"' in world.client().get("/").text
    for name in ("ada", "bob"):
        assert name not in page
