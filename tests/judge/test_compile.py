"""Compiling a `.cu` file ahead, against scripted compilers."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader.judge import compile as module
from grader.judge.compile import LIBRARY_BYTES, nvcc_target, start_compile
from grader.judge.kept_kernels import KeptKernels
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
from grader.sandbox.gpu_info import Gpu, GpuDriver
from grader.submission import Submission
from grader.wire import Reply, Status, receive_request, send_reply
from tests.judge.conftest import SPEC, WriteProblem
from tests.judge.test_session import Script, ScriptedRunner, answer
from tests.waiting import PATIENCE_S

CUDA = Submission("kernel.cu", "cuda", b"int main( {")


class Scripted(Sandbox):
    """Starts runners that follow a script, once `gate` is set."""

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
    """Records whether it was stopped."""

    is_stopped = False

    def log(self) -> bytes:
        return b"output\n"

    def poll(self) -> RunnerExit | None:
        return RunnerExit(stopped=True) if self.is_stopped else super().poll()

    def stop(self) -> RunnerExit:
        self.is_stopped = True
        with contextlib.suppress(OSError):  # it is already stopped
            self.far.shutdown(socket.SHUT_RDWR)  # ends a script that is receiving
        return super().stop()


def greeted(then: Script) -> Script:
    """A compiler that first reports its version."""

    def script(sock: socket.socket) -> None:
        answer(sock, text="13.0")
        then(sock)

    return script


def replies(**changes: object) -> Script:
    """Replies to the request to compile, without compiling."""

    def script(sock: socket.socket) -> None:
        request, fds = receive_request(sock)
        for fd in fds:
            os.close(fd)
        fields: dict[str, object] = {"sequence": request["sequence"], "status": Status.OK}
        send_reply(sock, Reply(**fields | changes))  # type: ignore[arg-type]

    return script


def dies(sock: socket.socket) -> None:
    """Ends while compiling."""
    _, fds = receive_request(sock)
    for fd in fds:
        os.close(fd)
    sock.close()


def waits(sock: socket.socket) -> None:
    """Never replies."""
    sock.recv(1)
    sock.recv(1)


def writes(sock: socket.socket) -> None:
    """Receives a request, and writes a library into the lent memory."""
    request, (source, memory) = receive_request(sock)
    assert request["kind"] == "compile"
    assert os.pread(source, 100, 0) == CUDA.source
    os.pwrite(memory, b"ELF", 0)
    for fd in (source, memory):
        os.close(fd)
    send_reply(sock, Reply(request["sequence"], Status.OK, calls=3))


@pytest.fixture
def problem(write_problem: WriteProblem) -> Problem:
    return write_problem(spec=SPEC.replace("load_s: 200", "load_s: 0.4"))


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    gc.collect()  # what earlier tests left is not to be closed in the middle
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [t for t in threading.enumerate() if t.name.startswith("grade-compile")]


@pytest.mark.parametrize(
    ("text", "compiler"),
    [("12.8", {"nvrtc": "12.8"}), ("12.8\x1b[2J", {"nvcc": "13.0"}), ("9" * 9, {"nvcc": "13.0"})],
)
def test_the_compiler_that_was_used_is_noted(
    problem: Problem, text: str, compiler: dict[str, str]
) -> None:
    sandbox = Scripted(greeted(replies(text=text)))
    with start_compile(problem, CUDA, sandbox, "cpu") as compilation:
        library = compilation.library()
        assert library is not None
        assert library.compiler == compiler


def test_the_library_is_what_the_compiler_wrote(problem: Problem) -> None:
    sandbox = Scripted(greeted(writes))
    with start_compile(problem, CUDA, sandbox, "cpu") as compilation:
        library = compilation.library()
        assert library is not None
        assert library.compiler == {"nvcc": "13.0"}
        assert library.content == b"ELF"
        assert sandbox.started[0].is_stopped, "it cannot write while the runner reads"
        assert compilation.log == b"output\n"
        assert 0 < compilation.stages_s["compile"] < 0.4


def test_a_kept_library_is_not_compiled_again(problem: Problem, tmp_path: Path) -> None:
    sandbox = Scripted(greeted(writes))
    kept = KeptKernels(tmp_path / "kernels")
    for _ in range(2):
        with start_compile(problem, CUDA, sandbox, "cpu", kept) as compilation:
            library = compilation.library()
            assert library is not None
            assert library.compiler == {"nvcc": "13.0"}
            assert library.content == b"ELF"
    assert len(sandbox.started) == 1


def test_no_more_is_taken_than_was_lent(problem: Problem) -> None:
    def overstates(sock: socket.socket) -> None:
        request, (source, memory) = receive_request(sock)
        for fd in (source, memory):
            os.close(fd)
        send_reply(sock, Reply(request["sequence"], Status.OK, calls=(1 << 64) - 1))

    with start_compile(problem, CUDA, Scripted(greeted(overstates)), "cpu") as compilation:
        library = compilation.library()
        assert library is not None
        assert len(library.content) == LIBRARY_BYTES


def test_a_failure_is_compiled_again_when_asked_for(problem: Problem) -> None:
    sandbox = Scripted(greeted(dies), RunnerExit(signal=9))
    with start_compile(problem, CUDA, sandbox, "cpu") as compilation:
        with pytest.raises(SubmissionFault, match="SIGKILL"):
            compilation.library()
        sandbox.script, sandbox.ending = greeted(writes), None
        compilation.retry()
        assert compilation.library() is not None
        compilation.retry()
    assert len(sandbox.started) == 2


def test_nothing_is_kept_of_a_file_that_does_not_compile(problem: Problem, tmp_path: Path) -> None:
    sandbox = Scripted(greeted(replies(status=Status.COMPILE_ERROR, text="nvcc: error: x")))
    kept = KeptKernels(tmp_path / "kernels")
    with start_compile(problem, CUDA, sandbox, "cpu", kept) as compilation:
        with pytest.raises(SubmissionFault):
            compilation.library()
        assert not kept.path.exists()


def test_it_starts_immediately(problem: Problem) -> None:
    """Before `library()` is called."""
    replied = threading.Event()

    def script(sock: socket.socket) -> None:
        writes(sock)
        replied.set()

    with start_compile(problem, CUDA, Scripted(greeted(script)), "cpu"):
        assert replied.wait(PATIENCE_S)


def test_other_languages_need_no_compiler(problem: Problem) -> None:
    sandbox = Scripted(greeted(writes))
    python = Submission("kernel.py", "python", b"")
    with start_compile(problem, python, sandbox, "cpu") as compilation:
        assert compilation.library() is None
        assert (compilation.log, compilation.stages_s) == (b"", {})
    assert not sandbox.started


@pytest.mark.parametrize(
    ("then", "ending", "verdict", "words"),
    [
        (
            replies(status=Status.COMPILE_ERROR, text="nvcc: error: x"),
            None,
            Verdict.COMPILE_ERROR,
            "nvcc: error: x",
        ),
        (
            replies(status=Status.OUT_OF_MEMORY, text="MemoryError"),
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
        (replies(sequence=5), None, Verdict.RUNTIME_ERROR, "abused the wire"),
    ],
)
def test_faults_are_those_of_loading(
    problem: Problem, then: Script, ending: RunnerExit | None, verdict: Verdict, words: str
) -> None:
    sandbox = Scripted(greeted(then), ending)
    with start_compile(problem, CUDA, sandbox, "cpu") as compilation:
        with pytest.raises(SubmissionFault) as caught:
            compilation.library()
        assert sandbox.started[0].is_stopped
    assert caught.value.fault.verdict is verdict
    assert words in caught.value.fault.reason
    assert compilation.log == b"output\n"


def test_a_killed_compiler_is_a_killed_runner(problem: Problem) -> None:
    sandbox = Scripted(greeted(dies), RunnerExit(signal=9))
    with (
        start_compile(problem, CUDA, sandbox, "cpu") as compilation,
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
def test_a_failure_before_the_source_is_sent_is_the_sandbox_s(
    problem: Problem, script: Script, words: str
) -> None:
    ending = RunnerExit(exit_code=1) if words == "failed at start" else None
    with (
        start_compile(problem, CUDA, Scripted(script, ending), "cpu") as compilation,
        pytest.raises(SandboxError, match=words),
    ):
        compilation.library()


def test_a_sandbox_that_does_not_start_is_the_sandbox_s_fault(problem: Problem) -> None:
    sandbox = Scripted(writes)
    sandbox.error = SandboxError("no space left")
    with (
        start_compile(problem, CUDA, sandbox, "cpu") as compilation,
        pytest.raises(SandboxError, match="no space left"),
    ):
        compilation.library()


@pytest.mark.parametrize("is_started", [True, False])
def test_it_stops_with_the_grading(problem: Problem, is_started: bool) -> None:
    sandbox = Scripted(greeted(waits))
    if not is_started:
        sandbox.gate.clear()
    start = time.monotonic()
    with (
        pytest.raises(SandboxError, match="no runner"),
        start_compile(problem, CUDA, sandbox, "cpu"),
    ):
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
def test_the_target_is_this_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], target: str
) -> None:
    gpu = Gpu("one", 1 << 30, capability)
    monkeypatch.setattr(module, "driver", lambda: GpuDriver(None, (13, 0), (gpu,)))
    assert nvcc_target("cuda") == target


def test_the_target_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvcc_target("cpu") == "90a"
    monkeypatch.setattr(module, "driver", lambda: GpuDriver("no NVIDIA GPU"))
    with pytest.raises(SandboxError, match="no NVIDIA GPU"):
        nvcc_target("cuda")
