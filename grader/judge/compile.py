"""Compiling a `.cu` file, in a separate sandbox, while the runner starts.

The runner's own sandbox must not hold the submission yet, because the judge calibrates its clock
with it. The compiler's sandbox has no device, and is stopped before calibration. It writes the
library into memory that the judge lends. Each runner gets a copy of its own that it cannot change,
or a runner could leave the next one what it knows.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from grader.judge.kept_kernels import KeptKernels
from grader.judge.record import Device
from grader.judge.session import Session, blame_sandbox
from grader.problem import Problem, prototypes
from grader.sandbox.base import Runner, RunnerLimits, Sandbox, SandboxError
from grader.sandbox.gpu_info import driver
from grader.submission import Submission
from grader.wire import fixed_size_memfd, sealed_memfd

LIBRARY_BYTES = 64 << 20
"""Size limit of a library. Memory is allocated only for what is written."""
START_S = 120.0
"""How long the sandbox may take to answer its first request, on a busy machine."""


@dataclass(frozen=True)
class CompiledLibrary:
    """A compiled `.cu` file."""

    content: bytes
    """What the compiler's sandbox wrote, as untrusted as the file."""
    compiler: dict[str, str]
    """Name of the compiler, ``nvcc`` or ``nvrtc`` → its version."""


class CompileJob:
    """Compiles one `.cu` file in a thread. Does nothing for submissions in other languages."""

    def __init__(
        self,
        problem: Problem,
        submission: Submission,
        sandbox: Sandbox,
        device: Device,
        kept: KeptKernels | None = None,
    ) -> None:
        self.log = b""
        """Output of the compiler's sandbox; complete once that has ended."""
        self.stages_s: dict[str, float] = {}
        """Duration of the stage `compile`, in seconds."""
        self._limits = problem.spec.limits
        self._prototypes = prototypes(problem.spec)
        self._set_prototype = problem.set_prototype
        self._submission = submission
        self._sandbox = sandbox
        self._device = device
        self._kept = kept
        self._thread: ThreadPoolExecutor | None = None
        self._future: Future[CompiledLibrary] | None = None
        self._lock = threading.Lock()
        self._runner: Runner | None = None
        self._is_over = False

    def library(self) -> CompiledLibrary | None:
        """Wait for the library, until its sandbox has ended. None for other languages.

        Raises `SubmissionFault` when the file does not compile, and `SandboxError`.
        """
        return self._future.result() if self._future else None

    def wait(self) -> None:
        """Wait until there is a library, or a reason why there is none."""
        if self._future is not None:
            self._future.exception()

    def begin(self, thread: ThreadPoolExecutor) -> None:
        """Start compiling in `thread`."""
        self._thread = thread
        self._future = thread.submit(self._run)

    def retry(self) -> None:
        """Compile again if that has failed, as where a busy host has killed the compiler."""
        if self._thread is not None and self._future is not None and self._future.exception():
            self._future = self._thread.submit(self._run)

    def end(self) -> None:
        """Stop compiling, at whatever point it is."""
        with self._lock:
            self._is_over, runner = True, self._runner
        if runner is not None:
            runner.stop()

    def _run(self) -> CompiledLibrary:
        if self._kept is not None and (found := self._kept.library()) is not None:
            return CompiledLibrary(*found)
        fd = fixed_size_memfd("library", LIBRARY_BYTES)
        try:
            library = self._run_compiler(fd)
        finally:
            os.close(fd)
        if self._kept is not None:
            self._kept.save_library(library.content, library.compiler)
        return library

    def _run_compiler(self, fd: int) -> CompiledLibrary:
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

    def _compile(self, session: Session, fd: int) -> CompiledLibrary:
        with blame_sandbox(session):
            version = session.ask("hello", {}, START_S, "starting up").text
        if version == "none":
            raise SandboxError(
                "no nvcc in the sandbox: a .cu file cannot be compiled here; install the CUDA "
                "toolkit, or use an image that has it"
            )
        text = self._submission.source
        request = {
            "source_bytes": len(text),
            "nvcc_target": nvcc_target(self._device),
            "prototypes": self._prototypes,
            "set_prototype": self._set_prototype,
        }
        source = sealed_memfd("source", text)
        what = "loading the submission"
        session.loading = True
        start = time.monotonic()
        try:
            reply = session.ask("compile", request, self._limits.load_s, what, fds=(source, fd))
        finally:
            self.stages_s["compile"] = time.monotonic() - start
            os.close(source)
        is_nvrtc = re.fullmatch(r"\d{1,3}\.\d{1,3}", reply.text) is not None
        return CompiledLibrary(
            os.pread(fd, min(reply.calls, LIBRARY_BYTES), 0),
            {"nvrtc": reply.text} if is_nvrtc else {"nvcc": version},
        )


@contextmanager
def start_compile(
    problem: Problem,
    submission: Submission,
    sandbox: Sandbox,
    device: Device,
    kept: KeptKernels | None = None,
) -> Iterator[CompileJob]:
    """Start compiling a `.cu` file in the background; stop its sandbox at the end of the block.
    With `kept`, its library is kept, or taken from there if it was kept before."""
    compilation = CompileJob(problem, submission, sandbox, device, kept)
    if submission.language != "cuda":
        yield compilation
        return
    with ThreadPoolExecutor(1, thread_name_prefix="grade-compile") as thread:
        try:
            compilation.begin(thread)
            yield compilation
        finally:
            compilation.end()


def nvcc_target(device: Device) -> str:
    """The architecture for nvcc, such as ``90a``: this machine's GPU, or Hopper without a GPU, so
    that Hopper's instructions assemble."""
    major, minor = (9, 0)
    if device == "cuda":
        found = driver()  # not torch, which is still being imported
        if not found.gpus:
            raise SandboxError(found.missing or "the NVIDIA driver sees no GPU")
        major, minor = found.gpus[0].capability
    return f"{major}{minor}a" if major >= 9 else f"{major}{minor}"
