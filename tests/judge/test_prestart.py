"""`prestarted()`: a runner that starts before its grading, in a fake sandbox."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grader.judge.gpu import lock as module
from grader.judge.gpu.lock import gpu_lock
from grader.judge.grade import prestarted
from grader.problem import Problem
from grader.sandbox.base import (
    Device,
    Runner,
    RunnerDevice,
    RunnerLimits,
    Sandbox,
    SandboxError,
)
from tests.sandbox.test_pool import FakeRunner
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("unused_gpu")

PROBLEM = Problem.load(Path(__file__).resolve().parents[2] / "problems" / "softmax")
LIMITS = RunnerLimits.of(PROBLEM.spec.limits)


class FakeSandbox(Sandbox):
    """Records the runners it started."""

    name = "fake"

    def __init__(self) -> None:
        self.runners: list[FakeRunner] = []
        self.started = threading.Event()

    def describe(self) -> str:
        return self.name

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        self.started.set()
        self.runners.append(FakeRunner())
        return self.runners[-1]


@pytest.fixture
def sandbox() -> FakeSandbox:
    return FakeSandbox()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_it_starts_early_and_serves_one_grading(sandbox: FakeSandbox, device: Device) -> None:
    with prestarted(sandbox, PROBLEM, device) as started:
        assert sandbox.started.wait(PATIENCE_S)
        with gpu_lock(device), started.start(LIMITS, device) as runner:
            assert runner.channel is sandbox.runners[0].channel
        assert len(sandbox.runners) == 1, "no second one starts early"
        with started.start(LIMITS, device):
            assert len(sandbox.runners) == 2, "but one for a repeated grading"
    assert all(runner.final for runner in sandbox.runners)


def test_an_unused_runner_is_stopped(sandbox: FakeSandbox) -> None:
    with pytest.raises(ValueError, match="no board"), prestarted(sandbox, PROBLEM, "cpu"):
        assert sandbox.started.wait(PATIENCE_S)
        raise ValueError("no board")
    assert all(runner.final for runner in sandbox.runners)


def test_nothing_starts_during_another_measurement(sandbox: FakeSandbox) -> None:
    def prestart() -> None:
        with prestarted(sandbox, PROBLEM, "cuda") as started:
            assert started is sandbox

    with ThreadPoolExecutor(1) as another, gpu_lock("cuda"):
        another.submit(prestart).result()
    assert not sandbox.started.is_set()


def test_a_missing_lock_folder_is_left_to_the_grading_to_report(
    sandbox: FakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLDER", tmp_path / "gone")
    with prestarted(sandbox, PROBLEM, "cuda") as started:
        assert started is sandbox
        with pytest.raises(SandboxError, match="No such file"), gpu_lock("cuda"):
            pytest.fail("it was held")
