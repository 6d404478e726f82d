"""The runner pool, with a recording sandbox and with the real ones."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader.sandbox.base import (
    Device,
    Runner,
    RunnerDevice,
    RunnerExit,
    RunnerLimits,
    Sandbox,
    SandboxError,
)
from grader.sandbox.pool import RunnerPool
from grader.sandbox.process import ProcessSandbox
from grader.wire import has_request, receive_request
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
LIMITS = RunnerLimits(1 << 30, 32 << 20, 4 << 20, pids=64)
OTHER = RunnerLimits(2 << 30, 32 << 20, 4 << 20, pids=64)


class FakeRunner(Runner):
    """A runner that does nothing until it is stopped."""

    def __init__(self) -> None:
        self.channel, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.final: RunnerExit | None = None

    def poll(self) -> RunnerExit | None:
        return self.final

    def log(self) -> bytes:
        return b"hello"

    def stop(self) -> RunnerExit:
        self.final = self.final or RunnerExit(signal=9, stopped=True)
        self.channel.close()
        self.far.close()
        return self.final


class RecordingSandbox(Sandbox):
    """Records its runners and compilers. A start waits for `gate`, and raises `error` if set."""

    name = "recording"

    def __init__(self) -> None:
        self.started: list[tuple[RunnerLimits, RunnerDevice, FakeRunner]] = []
        self.compilers: list[FakeRunner] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: SandboxError | None = None

    def describe(self) -> str:
        return "recording (by a test)"

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        runner = FakeRunner()
        if device == "none":
            self.compilers.append(runner)
        else:
            self.started.append((limits, device, runner))
        return runner

    def runner(self, index: int) -> FakeRunner:
        """The runner of this start; waits for it."""
        until(lambda: len(self.started) > index)
        return self.started[index][2]


@pytest.fixture
def sandbox() -> RecordingSandbox:
    return RecordingSandbox()


@pytest.fixture
def pool(sandbox: RecordingSandbox) -> Iterator[RunnerPool]:
    with RunnerPool(sandbox, LIMITS, "cpu") as pool:
        yield pool
    assert not [t for t in threading.enumerate() if t.name.startswith("grade-pool")]
    assert all(runner.final for _, _, runner in sandbox.started)
    assert all(runner.final for runner in sandbox.compilers)


def test_a_pool_has_the_name_of_its_sandbox(pool: RunnerPool) -> None:
    assert (pool.name, pool.describe()) == ("recording", "recording (by a test)")


def test_a_runner_is_started_in_advance(pool: RunnerPool, sandbox: RecordingSandbox) -> None:
    first = sandbox.runner(0)
    with pool.start(LIMITS, "cpu") as runner:
        assert runner.channel is first.channel
        assert runner.poll() is None
        assert runner.log() == b"hello"
        time.sleep(0.05)
        assert len(sandbox.started) == 1, "nothing starts during a grading"
    assert first.final == runner.poll() == RunnerExit(signal=9, stopped=True)
    second = sandbox.runner(1)
    with pool.start(LIMITS, "cpu") as runner:
        assert runner.channel is second.channel


def test_stopping_twice_starts_one(pool: RunnerPool, sandbox: RecordingSandbox) -> None:
    runner = pool.start(LIMITS, "cpu")
    assert runner.stop() == runner.stop()
    sandbox.runner(1)
    time.sleep(0.05)
    assert len(sandbox.started) == 2


@pytest.mark.parametrize("size", [2, 5])
def test_a_small_pool_replaces_a_runner_at_once(sandbox: RecordingSandbox, size: int) -> None:
    with RunnerPool(sandbox, LIMITS, "cpu", size=size) as pool:
        until(lambda: len(sandbox.started) == size)
        pool.start(LIMITS, "cpu").stop()
        until(lambda: len(sandbox.started) == size + 1)
        assert len(sandbox.compilers) == min(size, 4)
    assert all(runner.final for _, _, runner in sandbox.started)


def told(runner: FakeRunner) -> list[str]:
    """The kinds of the requests that a runner has not read yet."""
    kinds = []
    while has_request(runner.far):
        kinds.append(receive_request(runner.far)[0]["kind"])
    return kinds


def test_of_those_that_wait_only_the_next_two_open_their_gpu(sandbox: RecordingSandbox) -> None:
    """And only while none is in use: others would wait in the driver, and times be longer."""
    with RunnerPool(sandbox, LIMITS, "cuda", size=3) as pool:
        until(lambda: len(sandbox.started) == 3)
        # The first that started need not be the first in the queue.
        until(lambda: sum(has_request(runner.far) for _, _, runner in sandbox.started) == 2)
        taken = pool.start(LIMITS, "cuda")
        own = next(r for _, _, r in sandbox.started if r.channel is taken.channel)
        others = [r for _, _, r in sandbox.started if r is not own]
        assert set(told(own)) == {"open_device"}
        time.sleep(0.05)
        assert sorted(set(told(runner)) for runner in others) == [set(), {"open_device"}]
        taken.stop()
        assert [set(told(runner)) for runner in others] == 2 * [{"open_device"}]
        fourth = sandbox.runner(3)
        time.sleep(0.05)
        assert told(fourth) == []
        assert not any(has_request(compiler.far) for compiler in sandbox.compilers)


@pytest.fixture
def pool_of_six(sandbox: RecordingSandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunnerPool]:
    """A pool in which six runners wait. It starts what is missing soon, if none is in use."""
    monkeypatch.setattr("grader.sandbox.pool.IDLE_S", 0.02)
    with RunnerPool(sandbox, LIMITS, "cpu", size=6) as pool:
        until(lambda: len(sandbox.started) == 6)
        yield pool


def test_a_large_pool_replaces_runners_while_none_is_in_use(
    pool_of_six: RunnerPool, sandbox: RecordingSandbox
) -> None:
    pool_of_six.start(LIMITS, "cpu").stop()
    until(lambda: len(sandbox.started) == 7)
    runner = pool_of_six.start(LIMITS, "cpu")
    time.sleep(0.2)
    assert len(sandbox.started) == 7, "one is in use"
    runner.stop()
    until(lambda: len(sandbox.started) == 8)
    time.sleep(0.2)
    assert len(sandbox.started) == 8, "six wait"
    assert len(sandbox.compilers) == 4


def test_a_large_pool_always_has_a_few(
    pool_of_six: RunnerPool, sandbox: RecordingSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.sandbox.pool.IDLE_S", 1e3)
    started = []
    for _ in range(5):
        pool_of_six.start(LIMITS, "cpu").stop()
        time.sleep(0.05)
        started.append(len(sandbox.started))
    assert started == [6, 6, 7, 8, 9]


def test_a_runner_that_ends_before_it_is_told_is_no_fault(sandbox: RecordingSandbox) -> None:
    with RunnerPool(sandbox, LIMITS, "cuda", size=2) as pool:
        until(lambda: len(sandbox.started) == 2)
        taken = pool.start(LIMITS, "cuda")
        for _, _, runner in sandbox.started:
            if runner.channel is not taken.channel:
                runner.far.close()
        taken.stop()


def test_a_compiler_is_started_in_advance_and_replaced_after_the_runner_stops(
    pool: RunnerPool, sandbox: RecordingSandbox
) -> None:
    until(lambda: len(sandbox.compilers) == 1)
    runner = pool.start(LIMITS, "cpu")
    compiler = pool.start(LIMITS, "none")
    assert compiler.channel is sandbox.compilers[0].channel
    compiler.stop()
    time.sleep(0.05)
    assert len(sandbox.compilers) == 1, "nothing starts during a grading"
    runner.stop()
    until(lambda: len(sandbox.compilers) == 2)
    with pool.start(LIMITS, "none") as compiler:
        assert compiler.channel is sandbox.compilers[1].channel


def test_an_unused_compiler_is_kept(pool: RunnerPool, sandbox: RecordingSandbox) -> None:
    for _ in range(3):
        pool.start(LIMITS, "cpu").stop()
    sandbox.runner(3)
    time.sleep(0.05)
    assert [compiler.final for compiler in sandbox.compilers] == [None]


def test_a_compiler_that_outlives_its_runner_is_replaced(
    pool: RunnerPool, sandbox: RecordingSandbox
) -> None:
    with pool.start(LIMITS, "none"):
        pool.start(LIMITS, "cpu").stop()
        until(lambda: len(sandbox.compilers) == 2)
    time.sleep(0.05)
    assert [compiler.final is None for compiler in sandbox.compilers] == [False, True]


def test_a_compiler_is_replaced_while_no_runner_is_in_use(
    pool: RunnerPool, sandbox: RecordingSandbox
) -> None:
    """As where submissions are compiled while another process times others."""
    for count in range(1, 4):
        until(lambda count=count: len(sandbox.compilers) == count)  # type: ignore[misc]
        pool.start(LIMITS, "none").stop()
    until(lambda: len(sandbox.compilers) == 4)
    assert len(sandbox.started) == 1


def test_a_compiler_with_other_limits_starts_cold(
    pool: RunnerPool, sandbox: RecordingSandbox
) -> None:
    until(lambda: len(sandbox.compilers) == 1)
    with pool.start(OTHER, "none") as compiler:
        assert compiler.channel is sandbox.compilers[1].channel
    assert sandbox.compilers[0].final is None


def test_without_refill_later_runners_start_on_demand(sandbox: RecordingSandbox) -> None:
    with RunnerPool(sandbox, LIMITS, "cpu", refill=False) as pool:
        first = sandbox.runner(0)
        with pool.start(LIMITS, "cpu") as runner:
            assert runner.channel is first.channel
        time.sleep(0.05)
        assert len(sandbox.started) == 1
        pool.start(LIMITS, "cpu").stop()
        assert len(sandbox.started) == 2
    assert not sandbox.compilers


@pytest.mark.parametrize(("limits", "device"), [(OTHER, "cpu"), (LIMITS, "cuda")])
def test_other_limits_or_another_device_start_cold(
    pool: RunnerPool, sandbox: RecordingSandbox, limits: RunnerLimits, device: Device
) -> None:
    sandbox.runner(0)
    with pool.start(limits, device) as runner:
        assert sandbox.started[1][:2] == (limits, device)
        assert runner.channel is sandbox.started[1][2].channel
    time.sleep(0.05)
    assert len(sandbox.started) == 2, "the waiting runner is kept"
    assert sandbox.runner(0).final is None


def test_a_runner_that_died_while_waiting_is_replaced(
    pool: RunnerPool, sandbox: RecordingSandbox
) -> None:
    dead = sandbox.runner(0)
    dead.final = RunnerExit(exit_code=3)
    with pool.start(LIMITS, "cpu") as runner:
        assert runner.poll() is None
        assert runner.channel is not dead.channel
    assert dead.channel.fileno() == -1, "the dead runner is cleaned up"
    until(lambda: len(sandbox.started) == 3)


def test_a_failed_background_start_is_raised_by_the_next_start(
    pool: RunnerPool, sandbox: RecordingSandbox
) -> None:
    runner = pool.start(LIMITS, "cpu")
    sandbox.error = SandboxError("no space left")
    runner.stop()
    for _ in range(2):
        with pytest.raises(SandboxError, match="no space left"):
            pool.start(LIMITS, "cpu")
    sandbox.error = None
    with contextlib.suppress(SandboxError):  # from a start made while `error` was set
        pool.start(LIMITS, "cpu").stop()
    pool.start(LIMITS, "cpu").stop()


def test_close_waits_for_a_pending_start(sandbox: RecordingSandbox) -> None:
    sandbox.gate.clear()
    pool = RunnerPool(sandbox, LIMITS, "cpu")
    threading.Timer(0.1, sandbox.gate.set).start()
    pool.close()
    pool.close()
    assert [runner.final for _, _, runner in sandbox.started] == [
        RunnerExit(signal=9, stopped=True)
    ]
    with pytest.raises(SandboxError, match="closed"):
        pool.start(LIMITS, "cpu")


def test_close_stops_runners_in_use(sandbox: RecordingSandbox) -> None:
    with RunnerPool(sandbox, LIMITS, "cpu") as pool:
        runner = pool.start(LIMITS, "cpu")
    assert runner.poll() is not None
    assert len(sandbox.started) == 1


def test_stop_lent_stops_and_replaces_runners_in_use(
    pool: RunnerPool, sandbox: RecordingSandbox
) -> None:
    runner = pool.start(LIMITS, "cpu")
    pool.stop_lent()
    assert runner.poll() is not None
    assert sandbox.runner(1).final is None


def test_a_real_runner_is_warm_and_used_once() -> None:
    with RunnerPool(ProcessSandbox("grader.sandbox.hostile_probe"), LIMITS, "cpu") as pool:
        first = pool.start(LIMITS, "cpu")
        assert first.poll() is None
        first.stop()
        with pool.start(LIMITS, "cpu") as second:
            assert second.channel.fileno() != -1
            assert first.channel.fileno() == -1


@pytest.mark.docker
def test_a_docker_container_is_warm_and_leaves_nothing() -> None:
    from grader.sandbox.docker import DockerSandbox

    with RunnerPool(DockerSandbox(module="grader.sandbox.hostile_probe"), LIMITS, "cpu") as pool:
        pool.start(LIMITS, "cpu").stop()
        with pool.start(LIMITS, "cpu") as runner:
            assert runner.poll() is None
            until(lambda: len(containers(os.getpid())) == 2)  # with the compiler
    assert containers(os.getpid()) == set()


WAITER = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored where the tests run
from grader.sandbox.base import RunnerLimits
from grader.sandbox.pool import RunnerPool
from grader.sandbox.{module} import {sandbox}
limits = RunnerLimits(1 << 30, 32 << 20, 4 << 20, pids=64)
pool = RunnerPool({sandbox}(module="grader.sandbox.hostile_probe"), limits, "cpu")
runner = pool.start(limits, "cpu")
print("taken", flush=True)
{then}
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, None], ids=str)
@pytest.mark.parametrize(
    ("module", "sandbox"),
    [
        ("process", "ProcessSandbox"),
        pytest.param("docker", "DockerSandbox", marks=pytest.mark.docker),
    ],
)
def test_a_process_with_a_pool_leaves_nothing_behind(
    module: str, sandbox: str, number: signal.Signals | None
) -> None:
    then = "runner.stop()" if number is None else "time.sleep(500)"
    program = WAITER.format(module=module, sandbox=sandbox, then=then)
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    find = launchers if module == "process" else containers
    with process.stdout:
        assert process.stdout.readline() == "taken\n"
        found = find(process.pid)
        if number is not None:
            process.send_signal(number)
        assert process.wait(PATIENCE_S) == (128 + number if number else 0)
    if number is not None:
        assert found, "the runner in use, and perhaps a compiler"
    if module == "process":
        until(lambda: not any(Path("/proc", pid).exists() for pid in found))
    assert find(process.pid) == set()


def launchers(judge: int) -> set[str]:
    """Process ids of the launchers that this process has started."""
    children = Path(f"/proc/{judge}/task").glob("*/children")
    return {pid for file in children for pid in file.read_text().split()}


def containers(judge: int) -> set[str]:
    """Ids of the containers that this process has started."""
    from grader.sandbox.docker_engine import OWNER_LABEL, RUNNER_LABEL, docker_client

    with docker_client() as api:
        listed = api.containers(all=True, filters={"label": RUNNER_LABEL})
    return {c["Id"] for c in listed if c["Labels"][OWNER_LABEL].split("/")[2] == str(judge)}
