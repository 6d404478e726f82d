"""The result of a benchmark case: its numbers, its baselines, and the roofline's floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from grader.judge import benchmark_result as module
from grader.judge.benchmark_result import benchmark_result
from grader.judge.record import Record
from grader.judge.timing.measure import Sample, Timing
from grader.judge.timing.plan import POLICY
from grader.problem.spec import Case
from grader.report import CaseResult, Report, Rule, Verdict
from tests.judge.test_score import scored
from tests.judge.timing.test_measure import timed

CASE = Case(name="any", params={"n": 3})


def result_of(
    timing: Timing,
    device: str = "cpu",
    eager_us: list[float] | None = None,
    baselines_us: dict[str, float] | None = None,
    record: Record | None = None,
) -> CaseResult:
    grading: Any = SimpleNamespace(
        problem=SimpleNamespace(
            bytes=lambda _: 6e6, flops=lambda _: 8e6, spec=SimpleNamespace(cost="some")
        ),
        device=device,
        record=Record() if record is None else record,
        baselines_us={} if baselines_us is None else {"any": baselines_us},
    )
    return benchmark_result(grading, CASE, timing, 300.0, eager_us or [])


def test_a_result_has_the_numbers_of_its_timing() -> None:
    timing = replace(timed(Sample(200, 202)), round_mhz=[1979.54] * 6)
    result = result_of(timing)
    assert (result.name, result.kind, result.params) == ("any", "benchmark", {"n": 3})
    assert (result.time_us, result.ci_us, result.external_us) == (timing.time_us, timing.ci_us, 202)
    assert (result.status, result.cold_us, result.rounds) == ("passed", 300, 6)
    assert (result.round_us, result.round_mhz) == ([200.0] * 6, [1979.5] * 6)
    assert (result.calls_per_round, result.converged, result.graph) == (50, timing.converged, True)
    assert result.gb_per_s == pytest.approx(6e6 / (timing.time_us * 1e-6) / 1e9)
    assert result.tflop_per_s == pytest.approx(8e6 / (timing.time_us * 1e-6) / 1e12)
    assert result.sol is None


@pytest.mark.parametrize(
    ("before", "beside", "expected"),
    [
        ({"eager": 100.0, "library": 50.0}, [], {"eager": 100.0, "library": 50.0}),
        ({"eager": 100.0, "library": 50.0}, [99.0, 90.0, 500.0], {"eager": 99.0, "library": 50.0}),
        ({"eager": 100.0}, [101.9] * 3, {"eager": 101.9}),
        ({"eager": 100.0}, [150.0] * 3, {"eager": 100 * (1 + POLICY.baseline_drift)}),
        ({"library": 50.0}, [99.0], {"library": 50.0}),
        (None, [99.0], {}),
    ],
)
def test_eager_is_timed_between_the_rounds_unless_it_was_slowed_down(
    before: dict[str, float] | None, beside: list[float], expected: dict[str, float]
) -> None:
    """Drift of the chip cancels; a slower baseline would raise the speedup."""
    kept = dict(before or {})
    result = result_of(timed(Sample(200, 200)), eager_us=beside, baselines_us=before)
    assert result.baseline_us == pytest.approx(expected)
    assert (before or {}) == kept, "the times of the next grading stay as they are"


@pytest.mark.parametrize(("factor", "is_held"), [(1.01, False), (0.99, True)])
def test_a_time_below_the_hardwares_limit_is_held_for_review(
    monkeypatch: pytest.MonkeyPatch, factor: float, is_held: bool
) -> None:
    monkeypatch.setattr(module, "floor_us", lambda *_: 100.0)
    monkeypatch.setattr(module, "gpu_state", lambda: {"power_w": 312.5})
    time_us, record = 100 * POLICY.floor_share * factor, Record()
    result = result_of(timed(Sample(time_us, time_us)), device="cuda", record=record)
    assert result.sol == pytest.approx(100 / time_us)
    assert record.environment == {"gpu_state_any": {"power_w": 312.5}}
    # It is noted only: a forged time shows more clearly in a longer case.
    faults = [(fault.verdict, fault.rule) for fault in record.faults]
    assert faults == ([(Verdict.REJECTED, Rule.BELOW_FLOOR)] if is_held else [])
    if is_held:
        assert "84.2 µs is 1.19 times the hardware's own limit" in record.faults[0].reason


def test_a_round_that_reports_zero_can_still_be_scored(
    make_report: Callable[..., Report],
) -> None:
    """The logarithm of each round is taken; a forged zero must not end the judge."""
    timing = timed(*[Sample(200, 200)] * 3, Sample(0, 200), Sample(200, 200))
    case = result_of(timing)
    assert min(case.round_us) == POLICY.least_us
    report = scored(make_report, "full", case.model_copy(update={"baseline_us": {"eager": 1.0}}))
    assert report.score_us == pytest.approx(200)
