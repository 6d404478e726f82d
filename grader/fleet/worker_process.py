"""The worker process of a local slot. It grades one task at a time.

``python -m grader.fleet.worker_process --device cpu|cuda[:N] --sandbox docker|process [--warm N]``

It reads a `TaskRequest` per line on stdin, and writes a `WorkerMessage` per line on stdout: `ready`
once, then for each request any number of `progress`, and one `report`, `failure` or, of a task that
only compiles, `has_compiled`. It has torch imported, and keeps warm sandboxes, one or N, for the
next submissions to a problem with the same limits.
SIGTERM or the end of stdin ends it at once, even while it grades; its sandboxes end with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, model_validator

from grader.fleet.job import MAX_SOURCE_BYTES
from grader.judge import Progress, grade
from grader.judge.record import Device
from grader.problem import Problem, ProblemError
from grader.report import PassedTests, Report, one_line
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits, Sandbox, SandboxError
from grader.submission import Language, Submission

if TYPE_CHECKING:
    from grader.sandbox.pool import RunnerPool

MAX_REQUEST_BYTES = MAX_SOURCE_BYTES * 4 // 3 + (1 << 20)
"""The longest line of stdin: a source in base64, passed tests, and the other fields."""

EXIT_TIMEOUT_S = 30.0
"""Time to unwind after the end of stdin. The process then exits without."""


class _JsonLine(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="strings",
    )

    def line(self) -> bytes:
        """One line of JSON, newline included."""
        return self.model_dump_json().encode() + b"\n"


class TaskRequest(_JsonLine):
    """A task for a worker process."""

    task: int
    folder: Path
    digest: str
    name: str
    language: Language
    source: bytes
    benchmarks: bool = True
    passed: PassedTests | None = None
    kernels: Path | None = None
    compile_only: bool = False


class WorkerReady(_JsonLine):
    """The device of a worker process that is ready."""

    gpu: str | None


class WorkerMessage(_JsonLine):
    """A message of a worker process: it is ready, or one event of its task."""

    task: int | None = None
    ready: WorkerReady | None = None
    progress: Progress | None = None
    report: Report | None = None
    failure: str | None = None
    has_compiled: Literal[True] | None = None

    @model_validator(mode="after")
    def _has_one_event(self) -> Self:
        events = (self.ready, self.progress, self.report, self.failure, self.has_compiled)
        if sum(event is not None for event in events) != 1:
            raise ValueError("a message has exactly one event")
        return self


class TaskRunner:
    """Grades one task after another, and keeps `warm` sandboxes for the next ones."""

    def __init__(
        self,
        sandbox: Sandbox,
        device: Device,
        send: Callable[[WorkerMessage], None],
        warm: int = 1,
    ) -> None:
        self._sandbox = sandbox
        self._warm = warm
        self._device = device
        self._send = send
        self._limits: RunnerLimits | None = None
        self._pool: RunnerPool | None = None
        self._here: dict[str, Problem] = {}
        """Problems of other sets that were described on the other device, as they are here, by
        digest."""

    def run(self, request: TaskRequest) -> None:
        """Run one task, and send its progress and its outcome."""
        try:
            if request.compile_only:
                self._compile(request)
                message = WorkerMessage(task=request.task, has_compiled=True)
            else:
                message = WorkerMessage(task=request.task, report=self._grade(request))
        except (ProblemError, SandboxError) as error:
            message = WorkerMessage(task=request.task, failure=one_line(str(error)))
        self._send(message)

    def close(self) -> None:
        """End the warm sandboxes."""
        if self._pool is not None:
            self._pool.close()

    def _grade(self, request: TaskRequest) -> Report:
        problem, submission = self._loaded(request)
        return grade(
            problem,
            submission,
            sandbox=self._warm_sandbox(RunnerLimits.of(problem.spec.limits)),
            device=self._device,
            benchmarks=request.benchmarks,
            passed=request.passed,
            kernels=request.kernels,
            progress=lambda step: self._send(WorkerMessage(task=request.task, progress=step)),
        )

    def _compile(self, request: TaskRequest) -> None:
        from grader.judge.compile_ahead import compile_ahead

        problem, submission = self._loaded(request)
        # A pool for other limits stays: those that are tested next may need it.
        fits = self._limits == RunnerLimits.of(problem.spec.limits)
        sandbox = self._pool if self._pool is not None and fits else self._sandbox
        assert request.kernels is not None
        compile_ahead(
            problem, submission, sandbox=sandbox, device=self._device, kernels=request.kernels
        )

    def _loaded(self, request: TaskRequest) -> tuple[Problem, Submission]:
        """The problem and the submission of a task. Raises `ProblemError`."""
        problem = Problem.load(request.folder)
        if problem.digest != request.digest:
            raise ProblemError(
                f"{request.folder}: the problem has changed since this was submitted"
                f" (digest {problem.digest[:12]}, not {request.digest[:12]})"
            )
        submission = Submission(request.name, request.language, request.source)
        return self._on_this_device(problem), submission

    def _on_this_device(self, problem: Problem) -> Problem:
        if problem.imported is None or problem.imported.device == self._device:
            return problem
        from grader.judge.import_problem import on_device

        if problem.digest not in self._here:
            self._here[problem.digest] = on_device(problem, self._sandbox, self._device)
        return self._here[problem.digest]

    def _warm_sandbox(self, limits: RunnerLimits) -> RunnerPool:
        """The pool for these limits. Closes a pool for other limits."""
        from grader.sandbox.pool import RunnerPool

        if self._pool is None or limits != self._limits:
            self.close()
            self._pool = RunnerPool(self._sandbox, limits, self._device, self._warm)
            self._limits = limits
        return self._pool


def main() -> None:
    """Run tasks until the process is ended."""
    stdin, stdout = _take_over_streams()
    signal.signal(signal.SIGTERM, _on_sigterm)
    options = _options()
    kind, _, index = options.device.partition(":")
    device = cast(Device, kind)
    if index:  # before anything initializes CUDA
        os.environ["CUDA_VISIBLE_DEVICES"] = index
    requests: Queue[bytes] = Queue()
    threading.Thread(target=_read, args=(stdin, requests), daemon=True).start()

    def send(message: WorkerMessage) -> None:
        try:
            stdout.write(message.line())
        except BrokenPipeError:
            raise SystemExit(1) from None  # the parent has gone

    runner = TaskRunner(make_sandbox(options.sandbox), device, send, options.warm)
    try:
        send(WorkerMessage(ready=WorkerReady(gpu=_gpu(device))))
        while True:
            runner.run(TaskRequest.model_validate_json(_next(requests)))
    finally:
        runner.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="grader.fleet.worker_process")
    parser.add_argument("--device", required=True, metavar="cpu|cuda[:N]")
    parser.add_argument("--sandbox", required=True, choices=["docker", "process"])
    parser.add_argument("--warm", type=int, default=1, metavar="N")
    options = parser.parse_args()
    if options.device.partition(":")[0] not in ("cpu", "cuda"):
        parser.error(f"--device: '{options.device}' is not cpu, cuda or cuda:N")
    return options


def _take_over_streams() -> tuple[BinaryIO, BinaryIO]:
    """Keep stdin and stdout for the protocol: prints of libraries go to stderr, and child processes
    get an empty stdin."""
    stdin = os.fdopen(os.dup(0), "rb")
    stdout = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return stdin, stdout


def _read(stdin: BinaryIO, requests: Queue[bytes]) -> None:
    """Runs in a thread, to notice the end of stdin during a grading."""
    while (line := stdin.readline(MAX_REQUEST_BYTES)).endswith(b"\n"):
        requests.put(line)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(EXIT_TIMEOUT_S)
    os._exit(1)


def _next(requests: Queue[bytes]) -> bytes:
    """Wait for the next request. Polls, since a signal that arrives just before an endless wait
    would not be handled until its end."""
    while True:
        with suppress(Empty):
            return requests.get(timeout=1)


def _on_sigterm(number: int, _frame: FrameType | None) -> None:
    """Unwind. A second signal is ignored, so that it cannot interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _gpu(device: Device) -> str | None:
    """The name of the GPU, None on a CPU. Also imports what a grading needs."""
    import grader.judge.benchmark
    import grader.judge.grading  # noqa: F401
    from grader.judge.gpu.environment import gpu_name

    try:
        return gpu_name(device)
    except (RuntimeError, AssertionError) as error:  # raised by torch without a driver or a GPU
        sys.exit(f"no GPU can be used here: {one_line(str(error))}")


if __name__ == "__main__":
    main()
