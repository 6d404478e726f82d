"""The judge's side of compiling ahead, against compilers of every kind."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from grader.judge import compile as room
from grader.judge.compile import compiling, nvcc_target
from grader.judge.verdict import SubmissionFault
from grader.problem import Problem
from grader.report import Verdict
from grader.sandbox.base import (
    Runner,
    RunnerDevice,
    RunnerExit,
    RunnerLimits,
    Sandbox,
    SandboxError,
)
from grader.sandbox.gpu_info import Driver, Gpu
from grader.submission import Submission
from grader.wire import Reply, Status, receive_request, send_reply
from tests.judge.conftest import SPEC, WriteProblem
from tests.judge.test_session import Script, ScriptedRunner, answer
from tests.waiting import PATIENCE_S

CUDA = Submission("kernel.cu", "cuda", b"int main( {")


class Scripted(Sandbox):
    """Starts runners that follow a script, after its gate has opened."""

    name = "scripted"

    def __init__(self, script: Script, ending: RunnerExit | None = None) -> None:
        self.script, self.ending = script, ending
        self.gate = threading.Event()
        self.gate.set()
        self.started: list[Stoppable] = []
        self.error: SandboxError | None = None

    def describe(self) -> str:
        return self.name

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        assert device == "none"
        assert self.gate.wait(PATIENCE_S)
        if self.error:
            raise self.error
        self.started.append(Stoppable(self.script, self.ending))
        return self.started[-1]


class Stoppable(ScriptedRunner):
    """Knows when it was stopped."""

    is_stopped = False

    def log(self) -> bytes:
        return b"it said\n"

    def poll(self) -> RunnerExit | None:
        return RunnerExit(stopped=True) if self.is_stopped else super().poll()

    def stop(self) -> RunnerExit:
        self.is_stopped = True
        with contextlib.suppress(OSError):  # it was stopped before
            self.far.shutdown(socket.SHUT_RDWR)  # as a script would see it
        return super().stop()


def greeted(then: Script) -> Script:
    """A compiler that says its version first."""

    def script(sock: socket.socket) -> None:
        answer(sock, text="13.0")
        then(sock)

    return script


def says(**changes: object) -> Script:
    """A reply to the request to compile, which does nothing."""

    def script(sock: socket.socket) -> None:
        request, fds = receive_request(sock)
        for fd in fds:
            os.close(fd)
        fields: dict[str, object] = {"sequence": request["sequence"], "status": Status.OK}
        send_reply(sock, Reply(**fields | changes))  # type: ignore[arg-type]

    return script


def dies(sock: socket.socket) -> None:
    """Ends in the middle of its work."""
    _, fds = receive_request(sock)
    for fd in fds:
        os.close(fd)
    sock.close()


def waits(sock: socket.socket) -> None:
    """Never replies."""
    sock.recv(1)
    sock.recv(1)


def writes(sock: socket.socket) -> None:
    """Takes a request, and writes into the memory lent with it."""
    request, (source, memory) = receive_request(sock)
    assert request["kind"] == "compile"
    assert os.pread(source, 100, 0) == CUDA.source
    os.pwrite(memory, b"\3" + bytes(7) + b"ELF", 0)
    for fd in (source, memory):
        os.close(fd)
    send_reply(sock, Reply(request["sequence"], Status.OK))


@pytest.fixture
def problem(write_problem: WriteProblem) -> Problem:
    return write_problem(spec=SPEC.replace("load_s: 200", "load_s: 0.4"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [t for t in threading.enumerate() if t.name.startswith("grade-compile")]


def test_what_was_compiled_is_handed_over(problem: Problem) -> None:
    sandbox = Scripted(greeted(writes))
    with compiling(problem, CUDA, sandbox, "cpu") as compilation:
        library = compilation.library()
        assert library is not None
        assert library.nvcc == "13.0"
        assert os.pread(library.fd, 11, 0)[8:] == b"ELF"
        with pytest.raises(PermissionError):
            os.ftruncate(library.fd, 0)
        assert sandbox.started[0].is_stopped, "it may not write on while the runner reads"
        assert compilation.log == b"it said\n"
        assert 0 < compilation.stages_s["compile"] < 0.4


def test_it_begins_at_once(problem: Problem) -> None:
    """Nobody has to ask for the library first."""
    replied = threading.Event()

    def script(sock: socket.socket) -> None:
        writes(sock)
        replied.set()

    with compiling(problem, CUDA, Scripted(greeted(script)), "cpu"):
        assert replied.wait(PATIENCE_S)


def test_what_is_not_cuda_needs_no_sandbox(problem: Problem) -> None:
    sandbox = Scripted(greeted(writes))
    python = Submission("kernel.py", "python", b"")
    with compiling(problem, python, sandbox, "cpu") as compilation:
        assert compilation.library() is None
        assert (compilation.log, compilation.stages_s) == (b"", {})
    assert not sandbox.started


@pytest.mark.parametrize(
    ("then", "ending", "verdict", "words"),
    [
        (
            says(status=Status.COMPILE_ERROR, text="nvcc: error: x"),
            None,
            Verdict.COMPILE_ERROR,
            "nvcc: error: x",
        ),
        (
            says(status=Status.OUT_OF_MEMORY, text="MemoryError"),
            None,
            Verdict.MEMORY_LIMIT_EXCEEDED,
            "MemoryError",
        ),
        (
            dies,
            RunnerExit(signal=9, out_of_memory=True),
            Verdict.MEMORY_LIMIT_EXCEEDED,
            "loading the submission used more memory than allowed",
        ),
        (
            dies,
            RunnerExit(signal=9, output_exceeded=True),
            Verdict.OUTPUT_LIMIT_EXCEEDED,
            "loading the submission printed more than allowed",
        ),
        (
            waits,
            None,
            Verdict.TIME_LIMIT_EXCEEDED,
            "loading the submission took longer than 0.4 s",
        ),
        (dies, RunnerExit(exit_code=3), Verdict.COMPILE_ERROR, "exited with status 3"),
        (lambda s: s.send(b"nonsense"), None, Verdict.RUNTIME_ERROR, "abused the wire"),
        (says(sequence=5), None, Verdict.RUNTIME_ERROR, "abused the wire"),
    ],
)
def test_faults_are_those_of_a_load(
    problem: Problem, then: Script, ending: RunnerExit | None, verdict: Verdict, words: str
) -> None:
    sandbox = Scripted(greeted(then), ending)
    with compiling(problem, CUDA, sandbox, "cpu") as compilation:
        with pytest.raises(SubmissionFault) as caught:
            compilation.library()
        assert sandbox.started[0].is_stopped
    assert caught.value.fault.verdict is verdict
    assert words in caught.value.fault.reason
    assert compilation.log == b"it said\n"


def test_one_that_was_killed_may_be_graded_again(problem: Problem) -> None:
    sandbox = Scripted(greeted(dies), RunnerExit(signal=9))
    with (
        compiling(problem, CUDA, sandbox, "cpu") as compilation,
        pytest.raises(SubmissionFault) as caught,
    ):
        compilation.library()
    assert caught.value.fault.killed


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (lambda s: answer(s, text="none"), "no nvcc in the sandbox"),
        (lambda s: answer(s, status=Status.RUNTIME_ERROR, text="oh"), "failed at start: oh"),
        (lambda s: s.close(), "failed at start"),
    ],
)
def test_what_fails_before_it_has_the_source_is_ours(
    problem: Problem, script: Script, words: str
) -> None:
    ending = RunnerExit(exit_code=1) if words == "failed at start" else None
    with (
        compiling(problem, CUDA, Scripted(script, ending), "cpu") as compilation,
        pytest.raises(SandboxError, match=words),
    ):
        compilation.library()


def test_a_sandbox_that_does_not_start_is_ours(problem: Problem) -> None:
    sandbox = Scripted(writes)
    sandbox.error = SandboxError("no space left")
    with (
        compiling(problem, CUDA, sandbox, "cpu") as compilation,
        pytest.raises(SandboxError, match="no space left"),
    ):
        compilation.library()


@pytest.mark.parametrize("is_started", [True, False])
def test_it_ends_with_the_grading(problem: Problem, is_started: bool) -> None:
    sandbox = Scripted(greeted(waits))
    if not is_started:
        sandbox.gate.clear()
    start = time.monotonic()
    with pytest.raises(SandboxError, match="no runner"), compiling(problem, CUDA, sandbox, "cpu"):
        if is_started:
            while not sandbox.started:
                time.sleep(0.001)
        else:
            threading.Timer(0.1, sandbox.gate.set).start()
        raise SandboxError("no runner can be started")
    assert time.monotonic() - start < 8
    assert [runner.is_stopped for runner in sandbox.started] == [True]


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 6), "86"), ((9, 0), "90a"), ((12, 0), "120a")]
)
def test_code_is_for_this_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], target: str
) -> None:
    gpu = Gpu("one", 1 << 30, capability)
    monkeypatch.setattr(room, "driver", lambda: Driver(None, (13, 0), (gpu,)))
    assert nvcc_target("cuda") == target


def test_code_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvcc_target("cpu") == "90a"
    monkeypatch.setattr(room, "driver", lambda: Driver("no NVIDIA GPU"))
    with pytest.raises(SandboxError, match="no NVIDIA GPU"):
        nvcc_target("cuda")
