from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grader.adapters.rewards import TESTS_SHARE, NoVerdictError, reward
from grader.report import CaseResult, Report

Make = Callable[..., Report]


def cases_of(*statuses: Any) -> list[CaseResult]:
    return [CaseResult(name="t", kind="test", params={}, status=status) for status in statuses]


def benchmark(sol: float | None) -> CaseResult:
    return CaseResult(name="b", kind="benchmark", params={}, status="passed", time_us=9.0, sol=sol)


@pytest.mark.parametrize("verdict", ["compile_error", "output_limit_exceeded"])
def test_nothing_for_what_does_not_compile(make_report: Make, verdict: str) -> None:
    assert reward(make_report(verdict=verdict, cases=cases_of("passed"))) == 0


def test_nothing_for_a_broken_rule(make_report: Make) -> None:
    assert reward(make_report(verdict="rejected", rule="time_claim")) == 0


def test_a_share_for_tests_that_passed(make_report: Make) -> None:
    cases = cases_of("passed", "wrong_answer", "not_run", "not_run")
    assert reward(make_report(verdict="wrong_answer", cases=cases)) == TESTS_SHARE / 4
    assert reward(make_report(verdict="time_limit_exceeded", cases=[])) == 0


def test_the_share_of_the_roofline(make_report: Make) -> None:
    at = [
        reward(make_report(cases=[*cases_of("passed"), benchmark(share), benchmark(share)]))
        for share in (0.25, 0.5, 1.0, 1.3)
    ]
    assert at == pytest.approx([(1 + 3 * TESTS_SHARE) / 4, (1 + TESTS_SHARE) / 2, 1, 1])


def test_the_speedup_where_the_roofline_is_not_known(make_report: Make) -> None:
    cases = [*cases_of("passed"), benchmark(0.9), benchmark(None)]
    at = [
        reward(make_report(cases=cases, speedup=speedup))
        for speedup in ({}, {"eager": 1.0}, {"eager": 9.0, "compile": 3.0})
    ]
    assert at == pytest.approx([TESTS_SHARE + (1 - TESTS_SHARE) * s for s in (0, 0.5, 0.75)])


def test_times_on_a_cpu_are_practice(make_report: Make) -> None:
    assert reward(make_report(device="cpu", gpu=None, score_us=None)) == TESTS_SHARE


@pytest.mark.parametrize("verdict", ["judge_error", None])
def test_no_verdict_is_no_zero(make_report: Make, verdict: str | None) -> None:
    with pytest.raises(NoVerdictError, match="why"):
        reward(make_report(verdict=verdict, reason="why"))
