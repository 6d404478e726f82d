"""What is scored, and what is ranked."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grader.judge import grade
from grader.judge.record import Effort, Record
from grader.judge.score import scored as score_of
from grader.judge.score import tensor_bound_share
from grader.judge.timing.measure import Sample
from grader.report import CaseResult, Report, Verdict
from grader.submission import Submission
from tests.forked_sandbox import ForkedSandbox
from tests.judge.conftest import HONEST, WriteProblem
from tests.judge.timing.test_measure import PLAN, ROOM_US, timed


def benchmark_case(**changes: Any) -> CaseResult:
    fields: dict[str, Any] = {
        "name": "square",
        "kind": "benchmark",
        "params": {},
        "status": "passed",
        "time_us": 40.0,
        "ci_us": (39.95, 40.05),
        "round_us": [40.0] * 6,
        "converged": True,
        "baseline_us": {"eager": 80.0},
    }
    return CaseResult.model_validate(fields | changes)


def scored(
    report: Callable[..., Report],
    effort: Effort,
    *cases: CaseResult,
    tensor_share: float = 0,
    unseen: Sequence[str] = (),
) -> Report:
    bare = report(cases=list(cases), score_us=None, score_ci_us=None, speedup={}, ranked=False)
    return score_of(bare, effort, tensor_share, unseen)


def test_a_score_is_the_geometric_mean_of_the_benchmarks(
    make_report: Callable[..., Report],
) -> None:
    test = CaseResult(name="tiny", kind="test", params={}, status="passed")
    other = benchmark_case(
        name="wide",
        time_us=90.0,
        ci_us=(89.9, 90.1),
        round_us=[90.0] * 6,
        baseline_us={"eager": 45.0, "library": 9.0},
    )
    report = scored(make_report, "full", test, benchmark_case(), other)
    assert report.score_us == pytest.approx(60)
    assert report.score_ci_us is not None
    assert report.score_ci_us[0] < 60 < report.score_ci_us[1]
    # `library` was not timed on every case: no mean over all of them.
    assert report.speedup == {"eager": pytest.approx(1.0)}
    assert (report.ranked, report.notes) == (True, [])


@pytest.mark.parametrize(("tensor_share", "share"), [(0, 0.002), (1 / 3, 0.00283), (1, 0.0045)])
def test_a_score_is_known_less_well_the_more_cases_are_tensor_bound(
    make_report: Callable[..., Report], tensor_share: float, share: float
) -> None:
    still = benchmark_case(ci_us=(40.0, 40.0))
    report = scored(make_report, "full", still, tensor_share=tensor_share)
    assert report.score_ci_us == pytest.approx((40 * (1 - share), 40 * (1 + share)), rel=1e-5)
    vague = benchmark_case(ci_us=(38.0, 42.0))
    report = scored(make_report, "full", vague, tensor_share=tensor_share)
    assert report.score_ci_us == pytest.approx((38, 42))


@pytest.mark.parametrize("share", [1 / 3, 0])
def test_tensor_bound_cases_are_counted_among_the_benchmarks(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    problem: Any = SimpleNamespace(
        cases=lambda *asked: [1, 0, 0] if asked == ("benchmark", "cuda") else []
    )
    monkeypatch.setattr(
        "grader.judge.timing.plan.is_tensor_bound", lambda _, case: bool(case and share)
    )
    assert tensor_bound_share(problem) == share
    assert tensor_bound_share(SimpleNamespace(cases=lambda *_: [])) == 0  # type: ignore[arg-type]


def test_a_report_has_the_wider_interval_of_tensor_bound_cases(
    write_problem: WriteProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("grader.judge.grade")  # not the function of that name
    monkeypatch.setattr(module, "tensor_bound_share", lambda _: 1.0)
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    record = Record()
    record.cases = [benchmark_case()]
    submission = Submission.read(path, 10_000)
    sandbox = ForkedSandbox()
    problem = write_problem()
    request = module.GradingRequest(
        problem, submission, sandbox, "cuda", True, "full", lambda _: None
    )
    report = module._report(request, 1, record)
    assert report.ranked
    assert report.score_ci_us == pytest.approx((40 * 0.9955, 40 * 1.0045))


@pytest.mark.parametrize("converged", [False, None])
def test_a_case_that_did_not_converge_is_scored_and_not_ranked(
    make_report: Callable[..., Report], converged: bool | None
) -> None:
    loose = benchmark_case(name="wide", converged=converged)
    report = scored(make_report, "full", benchmark_case(), loose)
    assert not report.ranked
    assert report.score_us == pytest.approx(40)
    assert report.notes == ["not ranked: the time of wide did not converge; submit it again"]


def test_a_case_that_could_not_be_audited_gets_no_note_that_it_did_not_converge(
    make_report: Callable[..., Report],
) -> None:
    cases = [benchmark_case(name=name, converged=False) for name in ("huge", "wide")]
    report = scored(make_report, "full", *cases, unseen=["huge"])
    assert not report.ranked
    assert report.notes == ["not ranked: the time of wide did not converge; submit it again"]
    both = scored(make_report, "full", *cases, unseen=["huge", "wide"])
    assert (both.ranked, both.notes) == (False, [])


def test_a_score_that_is_not_known_well_enough_is_not_ranked(
    make_report: Callable[..., Report],
) -> None:
    vague = benchmark_case(time_us=40.0, round_us=[39.85, 40.15] * 3)
    cases = [vague.model_copy(update={"name": f"case_{i}"}) for i in range(6)]
    assert scored(make_report, "full", *cases).ranked  # 0.375 % each, over the root of six
    report = scored(make_report, "full", *cases[:2])
    assert not report.ranked
    assert report.notes == ["not ranked: the score is known to ±0.27% only; submit it again"]


def test_quick_times_are_scored_and_never_ranked(make_report: Callable[..., Report]) -> None:
    settled = scored(make_report, "quick", benchmark_case())
    loose = scored(make_report, "quick", benchmark_case(converged=False))
    for report in (settled, loose):
        assert (report.ranked, report.notes) == (False, [])
        assert report.score_us == pytest.approx(40)


def test_without_a_timed_case_there_is_no_score(make_report: Callable[..., Report]) -> None:
    untimed = benchmark_case(time_us=None, ci_us=None, status="not_run")
    report = scored(make_report, "full", untimed)
    assert (report.score_us, report.ranked) == (None, False)


@pytest.mark.parametrize("zeros", [1, PLAN.least_rounds])
@pytest.mark.parametrize("ranks", [False, True])
def test_reported_zeros_can_still_be_scored(
    make_report: Callable[..., Report], zeros: int, ranks: bool
) -> None:
    nothing = [Sample(0, 0)] * zeros
    timing = timed(*nothing, Sample(ROOM_US / 2, ROOM_US / 2), ranks=ranks, budget_s=0)
    case = benchmark_case(time_us=timing.time_us, ci_us=timing.ci_us)
    assert scored(make_report, "full", case).score_us == pytest.approx(timing.time_us)


def test_numbers_that_cannot_be_scored_are_an_error_of_the_judge(
    write_problem: WriteProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored_badly(*_: object) -> Report:
        raise ZeroDivisionError("float division by zero")

    module = importlib.import_module("grader.judge.grade")  # not the function of that name
    monkeypatch.setattr(module, "_report", _failing_once(module._report, scored_badly))
    path = tmp_path / "kernel.py"
    path.write_text(HONEST)
    submission = Submission.read(path, 10_000)
    report = grade(write_problem(), submission, sandbox=ForkedSandbox(), device="cpu")
    assert report.verdict is Verdict.JUDGE_ERROR
    assert "ZeroDivisionError" in report.reason


def _failing_once(
    real: Callable[..., Report], failing: Callable[..., Report]
) -> Callable[..., Report]:
    tries = iter([failing, real])
    return lambda *arguments: next(tries)(*arguments)
