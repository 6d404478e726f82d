"""A worker process through its pipes: requests in, messages out, and no process left after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from grader.fleet.job import MAX_SOURCE_BYTES
from grader.fleet.worker_process import (
    MAX_REQUEST_BYTES,
    TaskRequest,
    TaskRunner,
    WorkerMessage,
    WorkerReady,
)
from grader.problem import Problem
from grader.report import Report, Verdict
from grader.sandbox.base import Runner, RunnerDevice, RunnerLimits, Sandbox, SandboxError
from tests.fleet.fake import PROBLEM, ROOT, with_long_limit
from tests.waiting import PATIENCE_S, until

SUBMISSIONS = ROOT / "submissions/softmax"


def request(
    number: int, file: str, digest: str | None = None, problem: Problem = PROBLEM
) -> TaskRequest:
    path = SUBMISSIONS / file
    return TaskRequest(
        task=number,
        folder=problem.folder,
        digest=digest or problem.digest,
        name=path.name,
        language="python",
        source=path.read_bytes(),
    )


def children(pid: int) -> set[int]:
    """The running child processes of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for file in files for child in file.read_text().split()}


class Worker:
    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "grader.fleet.worker_process", *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def receive(self) -> WorkerMessage:
        assert self.process.stdout is not None
        return WorkerMessage.model_validate_json(self.process.stdout.readline())

    def receive_outcome(self, task_id: int) -> tuple[WorkerMessage, list[str]]:
        """The last message about a task, and the stages of its progress before."""
        stages: list[str] = []
        while True:
            message = self.receive()
            assert message.task == task_id
            if message.progress is None:
                return message, stages
            if message.progress.stage not in stages:
                stages.append(message.progress.stage)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("--device", "cpu", "--sandbox", "process")
    try:
        assert worker.receive() == WorkerMessage(ready=WorkerReady(gpu=None))
        yield worker
    finally:
        worker.close()


def test_it_grades_one_task_after_another(worker: Worker, tmp_path: Path) -> None:
    worker.send(request(1, "accepted/torch_softmax.py").line())
    first, stages = worker.receive_outcome(1)
    assert first.report is not None
    assert first.report.verdict is Verdict.ACCEPTED
    assert stages == ["sandbox_start", "load", "test", "benchmark"]
    worker.send(request(2, "wrong_answer/zeros.py").line())
    worker.send(request(3, "accepted/torch_softmax.py", digest="0" * 64).line())
    second, _ = worker.receive_outcome(2)
    assert second.report is not None
    assert second.report.verdict is Verdict.WRONG_ANSWER
    third, stages = worker.receive_outcome(3)
    assert third.failure is not None
    assert "has changed since this was submitted" in third.failure
    assert stages == []
    missing = request(4, "accepted/torch_softmax.py").model_copy(update={"folder": tmp_path / "no"})
    worker.send(missing.line())
    fourth, _ = worker.receive_outcome(4)
    assert fourth.failure is not None
    assert str(tmp_path / "no") in fourth.failure


@pytest.mark.parametrize("way", ["sigterm", "stdin", "sigkill"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_its_children_end_with_it(worker: Worker, tmp_path: Path, way: str, busy: bool) -> None:
    pid = worker.process.pid
    if busy:
        endless = "time_limit_exceeded/infinite_loop.py"
        worker.send(request(1, endless, problem=with_long_limit(tmp_path)).line())
        while (message := worker.receive()).progress is None or message.progress.stage != "test":
            pass
    else:  # idle, with a warm sandbox
        worker.send(request(1, "compile_error/syntax_error.py").line())
        worker.receive_outcome(1)
        until(lambda: bool(children(pid)))
    found = children(pid)
    assert found
    if way == "stdin":
        assert worker.process.stdin is not None
        worker.process.stdin.close()
    else:
        worker.process.send_signal(signal.SIGTERM if way == "sigterm" else signal.SIGKILL)
    assert worker.process.wait(PATIENCE_S) == (
        -signal.SIGKILL if way == "sigkill" else 128 + signal.SIGTERM
    )
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in found))


def test_an_endless_request_ends_it(worker: Worker) -> None:
    with pytest.raises(BrokenPipeError):
        for _ in range(0, 2 * MAX_REQUEST_BYTES, 1 << 20):
            worker.send(b"x" * (1 << 20))
    assert worker.process.wait(PATIENCE_S) == 128 + signal.SIGTERM


def test_it_imports_no_database() -> None:
    """That took a fifth of its start."""
    code = "import sys, grader.fleet.worker_process; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_options_are_checked() -> None:
    command = [
        sys.executable,
        "-m",
        "grader.fleet.worker_process",
        "--device",
        "tpu",
        "--sandbox",
        "process",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "'tpu' is not cpu, cuda or cuda:N" in ended.stderr


def test_a_missing_gpu_is_reported_without_a_traceback() -> None:
    command = [sys.executable, "-m", "grader.fleet.worker_process", "--device", "cuda:99"]
    ended = subprocess.run(
        [*command, "--sandbox", "process"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    # It may notice the end of its stdin before it looks for the GPU.
    assert ended.returncode in (1, 128 + signal.SIGTERM)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr


STRAY = """
import os, sys
from grader.fleet.worker_process import WorkerMessage, WorkerReady, _take_over_streams
stdin, stdout = _take_over_streams()
print("printed by a library", flush=True)
os.system("echo printed by a child; cat")
stdout.write(WorkerMessage(ready=WorkerReady(gpu=None)).line())
"""


def test_stray_prints_go_to_stderr() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STRAY], cwd=ROOT, input=b"request\n", capture_output=True, check=True
    )
    assert WorkerMessage.model_validate_json(ended.stdout) == WorkerMessage(
        ready=WorkerReady(gpu=None)
    )
    assert ended.stderr.decode().split("\n")[:2] == ["printed by a library", "printed by a child"]


def test_a_task_that_only_compiles_has_no_report(tmp_path: Path) -> None:
    """A file that has no kernels to compile here starts no sandbox."""
    sent: list[WorkerMessage] = []
    runner = TaskRunner(NoSandbox(), "cpu", sent.append)
    compiling = {"compile_only": True, "kernels": tmp_path / "kernels"}
    try:
        runner.run(request(5, "accepted/triton_softmax.py").model_copy(update=compiling))
    finally:
        runner.close()
    assert sent == [WorkerMessage(task=5, has_compiled=True)]
    assert not (tmp_path / "kernels").exists()


def test_the_largest_request_fits() -> None:
    full = request(1 << 62, "accepted/torch_softmax.py").model_copy(
        update={"source": b"\xff\n" * (MAX_SOURCE_BYTES // 2), "name": "n" * 255}
    )
    assert len(full.line()) < MAX_REQUEST_BYTES
    assert full.line().count(b"\n") == 1
    assert TaskRequest.model_validate_json(full.line()) == full


def test_a_report_survives_serialization(make_report: Callable[..., Report]) -> None:
    report = make_report(
        score_us=float("inf"), environment={"nan": float("-inf")}, log="\u2028 \x00 \n €"
    )
    line = WorkerMessage(task=1, report=report).line()
    assert line.count(b"\n") == 1
    parsed = WorkerMessage.model_validate_json(line).report
    assert parsed is not None
    assert parsed.score_us == float("inf")
    assert parsed.model_dump_json() == report.model_dump_json()


@pytest.mark.parametrize("fields", [{}, {"failure": "a", "ready": {"gpu": None}}, {"task": 1}])
def test_a_message_has_exactly_one_event(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        WorkerMessage.model_validate(fields)


class NoSandbox(Sandbox):
    name = "none"

    def describe(self) -> str:
        return self.name

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        raise SandboxError("no space\nleft")


def test_a_sandbox_that_does_not_start_is_a_failure() -> None:
    sent: list[WorkerMessage] = []
    runner = TaskRunner(NoSandbox(), "cpu", sent.append)
    try:
        runner.run(request(5, "accepted/torch_softmax.py"))
    finally:
        runner.close()
    assert sent[-1] == WorkerMessage(task=5, failure="no space left")
