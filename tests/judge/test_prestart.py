"""A runner that starts ahead of its grading, on a sandbox that is only looked at."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grader.judge.gpu import lock as module
from grader.judge.gpu.lock import exclusive
from grader.judge.prestart import ahead
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

PROBLEM = Problem.load(Path(__file__).resolve().parents[2] / "problems" / "softmax")
LIMITS = RunnerLimits.of(PROBLEM.spec.limits)


class Stills(Sandbox):
    """Keeps what it started."""

    name = "still"

    def __init__(self) -> None:
        self.runners: list[FakeRunner] = []
        self.asked = threading.Event()

    def describe(self) -> str:
        return self.name

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        self.asked.set()
        self.runners.append(FakeRunner())
        return self.runners[-1]


@pytest.fixture
def sandbox() -> Stills:
    return Stills()


@pytest.fixture(autouse=True)
def of_no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU that no other test, and nobody on this machine, measures on."""
    name = f"ahead-{os.getpid()}"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    monkeypatch.setattr(module, "selected_gpu_node", lambda: None)
    yield
    (Path("/tmp") / f"grade-gpu-{name}.lock").unlink(missing_ok=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_it_starts_unasked_and_is_taken_once(sandbox: Stills, device: Device) -> None:
    with ahead(sandbox, PROBLEM, device) as started:
        assert sandbox.asked.wait(PATIENCE_S)
        with exclusive(device), started.start(LIMITS, device) as runner:
            assert runner.channel is sandbox.runners[0].channel
        assert len(sandbox.runners) == 1, "no other starts for nobody"
        with started.start(LIMITS, device):
            assert len(sandbox.runners) == 2, "but for a grading that is repeated"
    assert all(runner.final for runner in sandbox.runners)


def test_what_nobody_takes_is_ended(sandbox: Stills) -> None:
    with pytest.raises(ValueError, match="no board"), ahead(sandbox, PROBLEM, "cpu"):
        assert sandbox.asked.wait(PATIENCE_S)
        raise ValueError("no board")
    assert all(runner.final for runner in sandbox.runners)


def test_nothing_starts_beside_another_measurement(sandbox: Stills) -> None:
    def try_it() -> None:
        with ahead(sandbox, PROBLEM, "cuda") as started:
            assert started is sandbox

    with ThreadPoolExecutor(1) as another, exclusive("cuda"):
        another.submit(try_it).result()
    assert not sandbox.asked.is_set()


def test_a_lock_that_cannot_be_made_is_for_the_grading_to_tell(
    sandbox: Stills, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLDER", tmp_path / "gone")
    with ahead(sandbox, PROBLEM, "cuda") as started:
        assert started is sandbox
        with pytest.raises(SandboxError, match="No such file"), exclusive("cuda"):
            pytest.fail("it was held")
