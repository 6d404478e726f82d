"""How long to measure, and how many calls a round has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grader.judge.gpu.environment import Ceilings
from grader.judge.memory.argument_sets import layout_of
from grader.judge.problem_code import Values
from grader.judge.record import Effort
from grader.judge.timing.measure import limit_us
from grader.judge.timing.plan import PLANS, POLICY, calls_per_round, floor_us, is_tensor_bound
from grader.problem import Problem
from grader.problem.spec import Case
from tests.judge.conftest import WriteProblem

H100 = SimpleNamespace(L2_cache_size=50 << 20, total_memory=80 << 30)
CEILINGS = Ceilings(bytes_per_s=3e12, fp32_per_s=5e13, tensor_per_s=7e14)
SIZES = [1, 1000, 1 << 16, 1 << 20, 1 << 24, 1 << 27]


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of which only the figures are there."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: H100)
    monkeypatch.setattr("grader.judge.timing.plan.measure_ceilings", lambda: CEILINGS)


def of_size(problem: Problem, n: int) -> tuple[Case, Values]:
    """A case of the tiny problem, and inputs whose memory is never touched."""
    case = Case(name="any", params={"n": n, "dtype": "fp32"})
    return case, {"x": torch.empty(n), "total": torch.empty(n), "factor": 2.0}


def set_bytes(problem: Problem, case: Case, template: Values) -> int:
    return layout_of(problem, case, template).nbytes


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("effort", ["quick", "full"])
@pytest.mark.parametrize("n", SIZES)
def test_a_round_is_long_enough_and_cold_where_memory_allows(
    write_problem: WriteProblem, n: int, effort: Effort
) -> None:
    problem = write_problem()
    case, template = of_size(problem, n)
    calls = calls_per_round(problem, case, template, "cuda", effort)
    most, one = PLANS["cuda", effort].most_calls, set_bytes(problem, case, template)
    assert POLICY.least_calls <= calls <= most
    # The judge holds a set at least twice: lent, and in its shadow.
    memory_bytes = POLICY.memory_share * H100.total_memory
    assert calls == POLICY.least_calls or 2 * calls * one <= memory_bytes
    if calls < most and 4 * (calls + 1) * one < memory_bytes:
        floor = CEILINGS.floor_us(problem.bytes(case), problem.flops(case), "fp32")
        assert calls * limit_us(floor, calls) + 1e-6 >= POLICY.doubt_us[True]
        assert calls * floor >= POLICY.least_round_us
        assert (calls - 1) * one >= POLICY.cold_l2 * H100.L2_cache_size


@pytest.mark.usefixtures("h100")
def test_benchmarks_that_share_a_gpu_share_its_memory(write_problem: WriteProblem) -> None:
    problem = write_problem()
    case, template = of_size(problem, 1 << 27)
    one = set_bytes(problem, case, template)
    alone = calls_per_round(problem, case, template, "cuda")
    shared = calls_per_round(problem, case, template, "cuda", sharing=2)
    assert POLICY.least_calls <= shared <= alone
    memory_bytes = POLICY.memory_share * H100.total_memory
    assert shared == POLICY.least_calls or 2 * 2 * shared * one <= memory_bytes


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize("n", SIZES)
def test_rounds_without_a_gate_are_longer_as_they_need(write_problem: WriteProblem, n: int) -> None:
    """A message starts them, and processors are slower than the GPU's own gate."""
    problem = write_problem()
    case, template = of_size(problem, n)
    gated, others = (
        calls_per_round(problem, case, template, "cuda", gate=gate) for gate in (True, False)
    )
    assert gated <= others <= PLANS["cuda", "full"].most_calls
    one = set_bytes(problem, case, template)
    has_room = 4 * (others + 1) * one < POLICY.memory_share * H100.total_memory
    if has_room and others < PLANS["cuda", "full"].most_calls:
        floor = CEILINGS.floor_us(problem.bytes(case), problem.flops(case), "fp32")
        assert others * limit_us(floor, others) + 1e-6 >= POLICY.doubt_us[False]


@pytest.mark.usefixtures("h100")
def test_some_rounds_are_longer_without_a_gate(write_problem: WriteProblem) -> None:
    problem = write_problem()
    case, template = of_size(problem, 1 << 24)
    gated, others = (
        calls_per_round(problem, case, template, "cuda", gate=gate) for gate in (True, False)
    )
    assert gated < others


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize(("gib", "calls"), [(1, POLICY.least_calls), (2, 2), (4, 1)])
def test_a_round_of_huge_tensors_has_as_many_calls_as_fit(
    write_problem: WriteProblem, gib: int, calls: int
) -> None:
    """A set of three such tensors is lent, and held in the shadow; two are outputs of which the
    judge has a snapshot and PyTorch's answer: ten in all."""
    problem = write_problem()
    case, template = of_size(problem, gib << 28)
    assert calls_per_round(problem, case, template, "cuda") == calls


@pytest.mark.usefixtures("h100")
def test_a_round_has_at_least_one_call(write_problem: WriteProblem) -> None:
    problem = write_problem()
    case, template = of_size(problem, 1 << 30)
    assert calls_per_round(problem, case, template, "cuda", sharing=8) == 1


def test_on_a_cpu_a_round_is_as_long_as_planned(write_problem: WriteProblem) -> None:
    problem = write_problem()
    case, template = of_size(problem, 10)
    assert calls_per_round(problem, case, template, "cpu") == PLANS["cpu", "full"].most_calls


def test_every_plan_can_be_kept() -> None:
    for plan in PLANS.values():
        assert plan.most_calls >= 2
        assert 1 < plan.least_rounds <= plan.most_rounds
        assert 0 < plan.relative < 0.1
        assert plan.budget_s > 0
    # Fewer rounds than six have no interval of 95 %, see `grader.stats.middle`.
    assert PLANS["cuda", "full"].least_rounds >= 6


@pytest.mark.usefixtures("h100")
def test_the_floor_is_the_rooflines(write_problem: WriteProblem) -> None:
    problem = write_problem()
    case, _ = of_size(problem, 1 << 20)  # 12 bytes of memory and 2 operations per element
    assert floor_us(problem, case) == pytest.approx(12 * (1 << 20) / 3e12 * 1e6)


@pytest.mark.usefixtures("h100")
@pytest.mark.parametrize(
    ("unit", "flops", "is_bound"),
    [("tensor", 3e9, True), ("tensor", 2e9, False), ("fp32", 9e9, False)],
)
def test_a_case_is_tensor_bound_where_memory_takes_less_time(
    unit: str, flops: float, is_bound: bool
) -> None:
    problem: Any = SimpleNamespace(
        unit=unit,
        bytes=lambda _: 1e7,  # as long as 2.3e9 operations of tensor cores
        flops=lambda _: flops,
    )
    assert is_tensor_bound(problem, Case(name="any", params={})) is is_bound
