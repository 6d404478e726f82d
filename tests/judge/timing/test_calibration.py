"""What a round costs besides its calls, and what of it is subtracted from a measured time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.judge.memory.argument_sets import arguments_of
from grader.judge.timing import calibration
from grader.judge.timing.calibration import (
    RoundCost,
    calibrate,
    calibrate_publishing,
    idle_rounds,
)
from grader.judge.timing.plan import POLICY
from grader.judge.timing.round import MeasuredRound, RoundStart
from grader.sandbox.base import SandboxError
from tests.judge.auditors import ScriptedAudit
from tests.judge.conftest import WriteProblem
from tests.judge.timing.test_plan import of_size

us = st.floats(0, 1e7)
rounds = st.builds(MeasuredRound, st.integers(1, 64), us, us, us)
costs = st.builds(RoundCost, st.one_of(us, st.just(math.inf)), us)


@given(costs, rounds)
def test_the_time_of_calls_is_never_negative(cost: RoundCost, measured: MeasuredRound) -> None:
    assert cost.calls_us(measured) >= 0


@given(costs, rounds)
def test_no_more_is_subtracted_than_an_idle_round_cost(
    cost: RoundCost, measured: MeasuredRound
) -> None:
    assert cost.calls_us(measured) >= measured.measured_us - cost.cost_us


@given(costs, rounds, us)
def test_a_delay_of_publishing_counts_as_time_of_the_calls(
    cost: RoundCost, measured: MeasuredRound, more_us: float
) -> None:
    """Work during publishing delays it."""
    slowest = replace(measured, publish_us=min(cost.publish_us, 1e7))
    disturbed = replace(slowest, publish_us=slowest.publish_us + more_us)
    longer_us = cost.calls_us(disturbed) - cost.calls_us(slowest)
    # Nothing is added where the duration is unknown, or too small to be a change of context.
    if disturbed.publish_us - cost.publish_us < POLICY.delay_us:
        assert longer_us == 0
    elif measured.measured_us >= cost.cost_us:
        assert longer_us == pytest.approx(more_us, rel=1e-6, abs=1e-6)


@given(costs, rounds, us)
def test_fast_publishing_gains_nothing(
    cost: RoundCost, measured: MeasuredRound, publish_us: float
) -> None:
    fast = replace(measured, publish_us=min(publish_us, cost.publish_us))
    assert cost.calls_us(fast) <= cost.calls_us(measured)
    assert cost.calls_us(fast) == max(0.0, measured.measured_us - cost.cost_us)


@given(costs, rounds, us)
def test_a_reported_time_does_not_change_the_measured_one(
    cost: RoundCost, measured: MeasuredRound, reported_us: float
) -> None:
    lying = replace(measured, reported_us=reported_us)
    assert cost.calls_us(lying) == cost.calls_us(measured)


def test_the_parts_of_an_honest_round_add_up() -> None:
    measured = MeasuredRound(calls=10, reported_us=500, measured_us=600, publish_us=200)
    assert measured.rest_us == 100
    assert RoundCost(publish_us=210, cost_us=100).calls_us(measured) == 500
    assert RoundCost(publish_us=150, cost_us=100).calls_us(measured) == 500
    assert RoundCost(publish_us=50, cost_us=100).calls_us(measured) == 650
    assert RoundCost().calls_us(measured) == 600


@pytest.mark.parametrize(("publish_us", "delay_us"), [(299.9, 0), (300.0, 100), (500.0, 300)])
def test_a_delay_is_the_time_beyond_undisturbed_publishing(
    publish_us: float, delay_us: float
) -> None:
    measured = MeasuredRound(10, 500, 600, publish_us)
    assert RoundCost(publish_us=200).delay_us(measured) == delay_us
    assert RoundCost().delay_us(measured) == 0


# --- calibration


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """The cost that is calibrated of idle rounds with these rests."""

    def of(rests_us: list[float]) -> float:
        found = [MeasuredRound(10, 500, 500 + rest_us, 200) for rest_us in rests_us]
        monkeypatch.setattr(calibration, "idle_rounds", lambda *_: found)
        return calibrate(None)  # type: ignore[arg-type]

    return of


rests = st.lists(us, min_size=1, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rests_us=rests)
def test_a_round_costs_the_least_of_the_idle_ones(
    calibrated: Callable[..., float], rests_us: list[float]
) -> None:
    assert calibrated(rests_us) == pytest.approx(min(rests_us), abs=1e-3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rests_us=rests, delayed_us=us)
def test_one_delayed_round_does_not_raise_the_cost(
    calibrated: Callable[..., float], rests_us: list[float], delayed_us: float
) -> None:
    assert calibrated([*rests_us, delayed_us]) <= calibrated(rests_us)


class IdleBlock:
    """A block without memory."""

    def __init__(self, publish_times_us: list[float] | None = None) -> None:
        self.is_closed = False
        self._publish_times_us = iter(publish_times_us or [])

    def publish_us(self) -> float:
        return next(self._publish_times_us)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def steps() -> list[str]:
    return []


@pytest.fixture
def idle_block(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> IdleBlock:
    """Stands in for the block of idle rounds, which can be captured and take 1, 2, 3… µs."""
    block, times_us = IdleBlock(), iter(range(1, 100))

    def run(_: Any, lent: Any, order: list[int], start: RoundStart, *__: Any) -> MeasuredRound:
        assert lent is block
        assert order == list(range(POLICY.idle_calls))
        assert start == RoundStart(graph=True, gate=True)
        steps.append("round")
        return MeasuredRound(len(order), 0, next(times_us), 0)

    monkeypatch.setattr(calibration, "SharedBlock", lambda *_: block)
    monkeypatch.setattr(calibration, "lend", lambda *_, **__: steps.append("lend"))
    monkeypatch.setattr(calibration, "capture", lambda *_: True)
    monkeypatch.setattr(calibration, "watch_only", lambda _: ScriptedAudit(steps=steps))
    monkeypatch.setattr(calibration, "run_round", run)
    return block


def test_idle_rounds_are_armed_like_others_and_the_first_warms_up(
    idle_block: IdleBlock, steps: list[str]
) -> None:
    asked: list[str] = []
    session: Any = SimpleNamespace(ask=lambda kind, *_: asked.append(kind))
    found = idle_rounds(session, 3)
    assert [measured.measured_us for measured in found] == [2, 3, 4]
    assert asked == ["idle"]
    assert steps == ["lend"] + ["arm", "round"] * 4
    assert idle_block.is_closed


def test_a_runner_that_captures_nothing_is_a_sandbox_error(
    idle_block: IdleBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "capture", lambda *_: False)
    session: Any = SimpleNamespace(ask=lambda *_: None)
    with pytest.raises(SandboxError, match="cannot capture a CUDA graph"):
        calibrate(session)
    assert idle_block.is_closed


def test_publishing_is_calibrated_per_set_after_one_warm_up(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    """Rounds of one case may have more sets later, such as those without a gate."""
    calls = 5
    slow = POLICY.publish_rounds // 2
    times_us = [9000.0, *[100.0 * calls] * (slow + 1), *[5000.0] * slow]
    block = IdleBlock(times_us)
    layouts: list[Any] = []
    problem = write_problem()
    case, template = of_size(problem, 8)
    monkeypatch.setattr(calibration, "calls_per_round", lambda *_: calls)

    def make_block(layout: Any, *_: Any) -> IdleBlock:
        layouts.append(layout)
        return block

    monkeypatch.setattr(calibration, "SharedBlock", make_block)
    monkeypatch.setattr(calibration, "watch_only", lambda _: ScriptedAudit(steps=steps))

    def published(_: Any, order: list[int], __: Any) -> None:
        assert order == list(range(calls))
        steps.append("publish")

    monkeypatch.setattr(calibration, "publish", published)
    assert calibrate_publishing(problem, case, template) == (100, layouts[0].nbytes)
    assert steps == ["arm", "publish"] * (POLICY.publish_rounds + 1)
    assert len(layouts[0].sets) == calls
    assert len(layouts[0].sets[0]) == len(arguments_of(problem, case, template))
    assert block.is_closed
