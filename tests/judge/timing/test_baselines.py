"""Timing of baselines: the calls, the number of argument sets, and graph replays."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from grader.judge.gpu.graphs import capture_graph, replay_us
from grader.judge.problem_code import ProblemCode
from grader.judge.timing import baselines
from grader.judge.timing.baselines import time_baselines
from grader.problem import ProblemError
from grader.problem.spec import Case
from tests.judge.conftest import REFERENCE, SPEC, WriteProblem

PREPARED = """

CALLED = []

def ready(x, total, factor):
    number = len(CALLED)
    CALLED.append([])
    def call():
        CALLED[number].append(number)
        return reference(x, total, factor)
    return call

PREPARED = {"ready": ready, "missing": lambda **_: None}
"""
MIB = 1 << 20


def test_prepared_calls_are_timed_on_every_set(write_problem: WriteProblem) -> None:
    problem = write_problem(reference=REFERENCE + PREPARED)
    code = ProblemCode(problem, "cpu")
    (case,) = problem.cases("benchmark", "cpu")
    begun: list[str] = []
    times = time_baselines(code, case, begin=begun.append)
    assert begun == ["eager", "ready", "missing"]
    assert set(times) == {"eager", "ready"}  # "missing" does not support the case
    assert all(time_us > 0 for time_us in times.values())
    called = code._reference.CALLED
    first, *others = map(len, called)
    assert len(called) > 1
    assert {*others} == {baselines.ROUNDS + 1}  # one warm-up
    assert first == baselines.ROUNDS + 2  # and one call whose outputs are checked


def test_a_baseline_that_fails_is_the_problem_s_fault(write_problem: WriteProblem) -> None:
    broken = "\n\nBASELINES = {'broken': lambda x, total, factor: x}\n"
    problem = write_problem(reference=REFERENCE + broken)
    with pytest.raises(ProblemError, match=r"broken\(\) returned 1 values"):
        time_baselines(ProblemCode(problem, "cpu"), problem.cases("benchmark", "cpu")[0])


@pytest.mark.cuda
def test_as_many_sets_are_prepared_as_keep_l2_cold() -> None:
    l2_bytes = torch.cuda.get_device_properties().L2_cache_size

    def prepare(nbytes: int) -> Any:
        memory = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        return lambda: memory.numel()

    def count(nbytes: int) -> int:
        return len(baselines._prepared_calls(prepare, [{"nbytes": nbytes}] * 40, "cuda"))

    assert count(l2_bytes) == 4
    assert count(l2_bytes // 4) == 13
    assert count(8 * l2_bytes) == 2
    assert count(0) == count(MIB) == 40  # no extra memory: the inputs keep L2 cold


@pytest.mark.cuda
def test_the_launch_of_a_graph_does_not_count() -> None:
    x = torch.zeros(1, device="cuda")
    x.add_(1)
    graph = capture_graph(lambda: x.add_(1))
    assert graph is not None
    replay_us(graph)
    replay = graph.replay

    class SlowToLaunch:
        def replay(self) -> None:
            time.sleep(50e-6)
            replay()

    # A sleep may take far longer than requested.
    assert min(replay_us(SlowToLaunch()) for _ in range(20)) < 30  # type: ignore[arg-type]


@pytest.mark.cuda
def test_code_that_synchronises_is_not_captured() -> None:
    x = torch.zeros(1, device="cuda")
    assert capture_graph(lambda: x.item()) is None
    assert capture_graph(lambda: x.add_(1)) is not None


@pytest.mark.parametrize("stops_at", [0, 1])
def test_ctrl_c_keeps_the_cases_that_were_measured(
    write_problem: WriteProblem, monkeypatch: pytest.MonkeyPatch, stops_at: int
) -> None:
    benchmark = "  - {name: small, params: {n: 4096, dtype: fp32}}\n"
    two = benchmark + benchmark.replace("small", "other")
    problem = write_problem(SPEC.replace(benchmark, two))
    seen: list[str] = []

    def timed(_: object, case: Case, **__: object) -> dict[str, float]:
        if len(seen) == stops_at:
            raise KeyboardInterrupt
        seen.append(case.name)
        return {"eager": 1.0}

    monkeypatch.setattr(baselines, "time_baselines", timed)
    if stops_at == 0:
        with pytest.raises(KeyboardInterrupt):
            baselines.measure_baselines(problem, "cpu")
        return
    found = baselines.measure_baselines(problem, "cpu")
    assert (found.cases, found.missing) == ({"small": {"eager": 1.0}}, ["other"])
    assert found.interrupted
