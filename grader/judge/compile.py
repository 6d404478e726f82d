"""A `.cu` file on its way through nvcc, in a sandbox of its own, beside the start of the runner.

Not in the runner's, since that one is still needed as ours alone: with it the judge gauges its
clock. This sandbox has no device, and is ended before anything is gauged. The library goes from the
one to the other through memory that the judge lends to both, and never looks at.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from grader.judge.record import Device
from grader.judge.session import Session, ours_alone
from grader.problem import Problem
from grader.sandbox.base import Runner, RunnerLimits, Sandbox, SandboxError
from grader.sandbox.gpu_info import driver
from grader.submission import Submission
from grader.wire import fixed_size_memfd, sealed_memfd

LIBRARY_BYTES = 64 << 20
"""The largest library, and its length; memory is taken only for what is written."""
START_S = 120.0
"""How long the sandbox's first word may take, on a busy machine."""


@dataclass(frozen=True)
class Library:
    """What a compiler handed over."""

    fd: int
    """Of the memory it lies in, for the runner."""
    nvcc: str
    """Version of the compiler."""


class Compilation:
    """What becomes of one file. Of one that is not compiled ahead there is nothing to tell."""

    def __init__(
        self, problem: Problem, submission: Submission, sandbox: Sandbox, device: Device
    ) -> None:
        self.log = b""
        """What was printed, once the sandbox has ended."""
        self.stages_s: dict[str, float] = {}
        """How long it took, as a stage of the grading."""
        self._limits = problem.spec.limits
        self._submission = submission
        self._sandbox = sandbox
        self._device = device
        self._found: Future[Library] | None = None
        self._lock = threading.Lock()
        self._runner: Runner | None = None
        self._is_over = False

    def library(self) -> Library | None:
        """What came of it, waited for; its sandbox has ended then. None for what is not compiled
        ahead. Raises `SubmissionFault` where the file does not compile, and `SandboxError`.
        """
        return self._found.result() if self._found else None

    def begin(self, thread: ThreadPoolExecutor, fd: int) -> None:
        """Compile in that thread, into that memory."""
        self._found = thread.submit(self._run, fd)

    def end(self) -> None:
        """End it, wherever it is."""
        with self._lock:
            self._is_over, runner = True, self._runner
        if runner is not None:
            runner.stop()

    def _run(self, fd: int) -> Library:
        with self._sandbox.start(RunnerLimits.of(self._limits), "none") as runner:
            with self._lock:
                self._runner = runner
                if self._is_over:
                    raise SandboxError("the grading has ended")
            try:
                return self._compile(Session(runner, self._limits.total_s), fd)
            finally:
                runner.stop()
                self.log = runner.log()

    def _compile(self, session: Session, fd: int) -> Library:
        with ours_alone(session):
            version = session.ask("hello", {}, START_S, "starting up").text
        if version == "none":
            raise SandboxError(
                "no nvcc in the sandbox: a .cu file cannot be compiled here; install the CUDA "
                "toolkit, or use an image that has it"
            )
        text = self._submission.source
        request = {"source_bytes": len(text), "nvcc_target": nvcc_target(self._device)}
        source = sealed_memfd("source", text)
        what = "loading the submission"
        session.loading = True
        start = time.monotonic()
        try:
            session.ask("compile", request, self._limits.load_s, what, fds=(source, fd))
        finally:
            self.stages_s["compile"] = time.monotonic() - start
            os.close(source)
        return Library(fd, version)


@contextmanager
def compiling(
    problem: Problem, submission: Submission, sandbox: Sandbox, device: Device
) -> Iterator[Compilation]:
    """Compile what is to be compiled ahead, from now on; at the end its sandbox is ended too."""
    compilation = Compilation(problem, submission, sandbox, device)
    if submission.language != "cuda":
        yield compilation
        return
    fd = fixed_size_memfd("library", LIBRARY_BYTES)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="grade-compile") as thread:
            try:
                compilation.begin(thread, fd)
                yield compilation
            finally:
                compilation.end()
    finally:
        os.close(fd)


def nvcc_target(device: Device) -> str:
    """The GPU to compile for, as nvcc has it: exactly this one; without one, Hopper, so that its
    instructions assemble."""
    major, minor = (9, 0)
    if device == "cuda":
        found = driver()  # not torch, which is only being imported now
        if not found.gpus:
            raise SandboxError(found.missing or "the NVIDIA driver sees no GPU")
        major, minor = found.gpus[0].capability
    return f"{major}{minor}a" if major >= 9 else f"{major}{minor}"
