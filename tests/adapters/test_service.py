"""The gradings that adapters await, with the sandboxes of one `Grader`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from grader.adapters import service
from grader.adapters.rewards import TESTS_SHARE, NoVerdictError
from grader.adapters.service import GradingFault, GradingService
from grader.automation import Item, Result, load_problem
from grader.problem import ProblemError
from grader.report import Report
from grader.submission import SubmissionError
from tests.adapters.conftest import RIGHT, WRONG, answer


def test_answers_in_real_sandboxes() -> None:
    async def run(service: GradingService) -> list[Any]:
        answers = [answer(RIGHT), answer(WRONG), answer("\ud800\n"), "no code", "```\n```"]
        judged = (service.judge_answer("softmax", one, benchmarks=False) for one in answers)
        return await asyncio.gather(*judged)

    with GradingService(devices=["cpu"], sandbox="process", tests_at_once=2) as service:
        right, wrong, broken, none, empty = asyncio.run(run(service))
    assert (right.reward, right.report.verdict) == (TESTS_SHARE, "accepted")
    assert wrong.report.verdict == "wrong_answer"
    assert 0 <= wrong.reward < TESTS_SHARE
    assert "\nwrong_answer: " in wrong.text
    assert (none.reward, none.report) == (0.0, None)
    assert "no fenced block" in none.text
    for one in (broken, empty):
        assert (one.reward, one.report.verdict) == (0.0, "compile_error")


class FakeGrader:
    """Gives each item the next result."""

    results: list[Result | Exception]
    batches: list[list[Item]]

    def __init__(self, **_: Any) -> None: ...
    def __enter__(self) -> FakeGrader:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, items: Iterable[Item]) -> Iterator[Result]:
        batch = list(items)
        self.batches.append(batch)
        for item in reversed(batch):
            result = self.results.pop()
            if isinstance(result, Exception):
                raise result
            yield Result(item.key, result.report, result.error)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeGrader]:
    monkeypatch.setattr(service, "Grader", FakeGrader)
    FakeGrader.results, FakeGrader.batches = [], []
    return FakeGrader


def test_a_fault_is_no_zero(fake: type[FakeGrader]) -> None:
    fake.results = [OSError("no pipe"), Result("", error="no sandbox\nstarts")]
    with GradingService() as service:
        for expected in ("no sandbox starts", "OSError: no pipe"):
            with pytest.raises(GradingFault, match=f"^{expected}$"):
                asyncio.run(service.judge_answer("softmax", answer(RIGHT)))


def test_no_verdict_is_no_zero(fake: type[FakeGrader], make_report: Any) -> None:
    fake.results = [Result("", make_report(verdict=None, reason="compiled, not run: no GPU"))]
    with GradingService() as service, pytest.raises(NoVerdictError, match="no GPU"):
        asyncio.run(service.judge_answer("softmax", answer(RIGHT), language="cuda"))


def test_each_caller_has_its_own_report(fake: type[FakeGrader], make_report: Any) -> None:
    """Batches end in another order than they began."""
    fake.results = [Result("", make_report(seed=seed)) for seed in range(20)]

    async def run(service: GradingService) -> list[Report]:
        sources = [f"x = {number}" for number in range(20)]
        return await asyncio.gather(*(service.grade("softmax", one) for one in sources))

    with GradingService() as service:
        reports = asyncio.run(run(service))
    graded = [item.source for batch in fake.batches for item in reversed(batch)]
    found = {source: 19 - number for number, source in enumerate(graded)}
    assert [report.seed for report in reports] == [found[f"x = {n}"] for n in range(20)]


def test_errors_of_the_caller(fake: type[FakeGrader]) -> None:
    limit = load_problem("softmax").spec.limits.source_bytes
    with GradingService() as service:
        with pytest.raises(ProblemError, match="no problem"):
            asyncio.run(service.grade("softmix", "x"))
        with pytest.raises(SubmissionError, match="are allowed"):
            asyncio.run(service.grade("softmax", "x" * (limit + 1)))
        outcome = asyncio.run(service.judge_answer("softmax", answer("x" * limit + "\n")))
    assert (outcome.reward, outcome.report) == (0.0, None)
    assert fake.batches == []


def test_a_device_that_is_unknown() -> None:
    with GradingService(devices=["gpu"]) as service, pytest.raises(ValueError, match="no device"):
        asyncio.run(service.grade("softmax", "x"))
