from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.fleet.validate_report import MAX_GPU_CHARS, MAX_NOTES, validate_report
from grader.report import CaseResult, Mismatch, Report, Verdict

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NAN, INF = float("nan"), float("inf")
ODD = "\x1b[31m\u202e\x00\n"


def timed(**changes: Any) -> CaseResult:
    fields: dict[str, Any] = {
        "name": "wide", "kind": "benchmark", "params": {"rows": 4}, "status": "passed",
        "time_us": 50.0, "ci_us": (49.0, 51.0), "round_us": [50.0], "sol": 0.5,
        "baseline_us": {"eager": 60.0},
    }  # fmt: skip
    return CaseResult.model_validate(fields | changes)


def wrong(**changes: Any) -> CaseResult:
    picture: dict[str, Any] = {
        "argument": "out", "shape": [4, 4], "index": [0, 1], "expected": 1.0, "got": NAN,
        "wrong_elements": 3, "total_elements": 16, "histogram": [("nan or inf", 3)],
    }  # fmt: skip
    return CaseResult(
        name="t", kind="test", params={}, status="wrong_answer", max_abs_err=INF, rel_l2=NAN,
        mismatch=Mismatch.model_validate(picture | changes),
    )  # fmt: skip


def test_a_valid_report_stays_unchanged(make_report: Callable[..., Report]) -> None:
    for report in (
        make_report(cases=[timed()]),
        make_report(verdict="wrong_answer", cases=[wrong()]),
        make_report(verdict="rejected", cases=[timed(round_us=[0.0, -1.0], time_us=0.0)]),
    ):
        found = validate_report(report, NOW)
        assert found.created_at == NOW
        kept = report.model_copy(update={"created_at": NOW})
        assert found.model_dump_json() == kept.model_dump_json()


def test_every_text_is_safe_and_short(make_report: Callable[..., Report]) -> None:
    long = ODD + "x" * 30_000
    report = make_report(
        reason=long, gpu=long, log=long, notes=[long], sandbox=long, submission_name=long,
        speedup={long: 1.0}, environment={long: {"deep": [long]}},
        cases=[timed(name=long, reason=long, params={long: long}, baseline_us={long: 1.0}),
               wrong(argument=long, worst_slice=long, histogram=[(long, 1)])],
    )  # fmt: skip
    found = validate_report(report, NOW)
    text = found.model_dump_json()
    assert len(text) < 40_000
    assert all(odd not in text for odd in ("\\u001b", "\u202e", "\\u0000"))
    assert len(found.gpu or "") <= MAX_GPU_CHARS
    json.loads(text)


@pytest.mark.parametrize(
    "changes",
    [
        *({"score_us": value} for value in (0.0, -1.0, NAN, INF, 1e300)),
        {"score_ci_us": (NAN, NAN)},
        {"score_ci_us": (-1.0, 60.0)},
        {"score_ci_us": (60.0, 40.0)},
        {"speedup": {"eager": 0.0}},
        {"speedup": {"eager": INF}},
        {"stages_s": {"total": NAN}},
        {"environment": {"cpus": 10**400}},
        {"environment": {"deep": [{"x": NAN}]}},
        *({"cases": [timed(sol=value)]} for value in (0.0, -0.5, NAN, INF)),
        *({"cases": [timed(time_us=value)]} for value in (0.0, -0.5, NAN, INF)),
        {"cases": [timed(round_us=[1.0, NAN])]},
        {"cases": [timed(round_mhz=[1980.0, NAN])]},
        {"cases": [timed(baseline_us={"eager": 0.0})]},
        {"cases": [timed(ci_us=(51.0, 49.0))]},
        {"cases": [timed(gb_per_s=INF)]},
        {"cases": [timed(rounds=10**30)]},
        {"cases": [wrong(shape=[-1, 4])]},
        {"cases": [wrong(shape=[10**300, 4])]},
        {"cases": [wrong(shape=[2] * 17)]},
        {"cases": [wrong(index=[0] * 17)]},
        {"cases": [wrong(histogram=[("1e0", 1)] * 101)]},
        {"cases": [timed(round_us=[50.0] * 201)]},
        {"cases": [timed(round_mhz=[1980.0] * 201)]},
        {"cases": [timed(baseline_us={str(i): 60.0 for i in range(51)})]},
        {"cases": [timed(params={"sizes": [1] * 1001})]},
        {"cases": [timed()] * 1001},
        {"speedup": {str(i): 1.0 for i in range(51)}},
        {"environment": {str(i): 1 for i in range(1001)}},
        {"cases": [wrong(wrong_elements=-1)]},
        {"cases": [wrong(histogram=[("exact", -5)])]},
    ],
)
def test_impossible_values_are_refused(
    make_report: Callable[..., Report], changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"cannot be|too large|mismatch"):
        validate_report(make_report(**changes), NOW)


def test_deep_nesting_is_refused(make_report: Callable[..., Report]) -> None:
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    with pytest.raises(ValueError, match="x is nested too deep"):
        validate_report(make_report(environment={"x": deep}), NOW)


@given(st.text(), st.text(max_size=300))
def test_validation_is_idempotent(log: str, reason: str) -> None:
    report = Report(
        problem="p", problem_digest="d", submission_sha256="s", submission_name="k.py",
        language="python", verdict=Verdict.RUNTIME_ERROR, reason=reason, device="cpu",
        sandbox="docker", log=log, seed=1,
    )  # fmt: skip
    once = validate_report(report, NOW)
    assert validate_report(once, NOW) == once


def test_excess_notes_are_dropped(make_report: Callable[..., Report]) -> None:
    """A valid grading of many noisy cases can have this many notes."""
    notes = [f"'{i}': 1 rounds left out" for i in range(1500)]
    assert validate_report(make_report(notes=notes), NOW).notes == notes[:MAX_NOTES]
