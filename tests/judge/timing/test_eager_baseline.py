"""Baselines: what is called, on how many sets, and what of a replay counts."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from grader.judge.gpu.graphs import captured, replay_us
from grader.judge.problem_code import ProblemCode
from grader.judge.timing import eager_baseline
from grader.judge.timing.eager_baseline import time_baselines
from grader.problem import ProblemError
from tests.judge.conftest import REFERENCE, WriteProblem

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


def test_what_a_library_prepares_is_timed_on_every_set(write_problem: WriteProblem) -> None:
    problem = write_problem(reference=REFERENCE + PREPARED)
    code = ProblemCode(problem, "cpu")
    (case,) = problem.cases("benchmark", "cpu")
    times = time_baselines(code, case)
    assert set(times) == {"eager", "ready"}  # where a library has no such call, nothing is timed
    assert all(time_us > 0 for time_us in times.values())
    called = code._reference.CALLED
    first, *others = map(len, called)
    assert len(called) > 1
    assert {*others} == {eager_baseline.ROUNDS + 1}  # once more, to be warm
    assert first == eager_baseline.ROUNDS + 2  # and once to be right


def test_a_baseline_that_fails_is_the_problem_s_fault(write_problem: WriteProblem) -> None:
    broken = "\n\nBASELINES = {'broken': lambda x, total, factor: x}\n"
    problem = write_problem(reference=REFERENCE + broken)
    with pytest.raises(ProblemError, match=r"broken\(\) returned 1 values"):
        time_baselines(ProblemCode(problem, "cpu"), problem.cases("benchmark", "cpu")[0])


@pytest.mark.cuda
def test_what_is_prepared_keeps_l2_cold_and_no_more() -> None:
    l2_bytes = torch.cuda.get_device_properties().L2_cache_size

    def prepare(nbytes: int) -> Any:
        memory = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        return lambda: memory.numel()

    def count(nbytes: int) -> int:
        return len(eager_baseline._prepared(prepare, [{"nbytes": nbytes}] * 40, "cuda"))

    assert count(l2_bytes) == 4
    assert count(l2_bytes // 4) == 13
    assert count(8 * l2_bytes) == 2
    assert count(0) == count(MIB) == 40  # what takes nothing of its own works on its inputs


@pytest.mark.cuda
def test_launching_a_graph_is_no_part_of_its_time() -> None:
    x = torch.zeros(1, device="cuda")
    x.add_(1)
    graph = captured(lambda: x.add_(1))
    assert graph is not None
    replay_us(graph)
    replay = graph.replay

    class SlowToLaunch:
        def replay(self) -> None:
            time.sleep(50e-6)
            replay()

    # A sleep takes longer than it was asked for, now and then far longer.
    assert min(replay_us(SlowToLaunch()) for _ in range(20)) < 30  # type: ignore[arg-type]


@pytest.mark.cuda
def test_what_synchronises_is_not_captured() -> None:
    x = torch.zeros(1, device="cuda")
    assert captured(lambda: x.item()) is None
    assert captured(lambda: x.add_(1)) is not None
