"""The interface of an engine, which runs gradings on worker slots.

An engine keeps no durable state. It takes a task and returns one outcome, or none if it dies; the
ledger then decides what becomes of the job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Self

from grader.fleet.job import gpu_matches
from grader.judge import Progress
from grader.judge.record import Device
from grader.report import PassedTests, Report, Verdict
from grader.submission import Language

OnProgress = Callable[[Progress], None]
"""Called from a thread of the engine, so it should be quick. Exceptions are logged."""


class NoFreeSlot(Exception):
    """No slot is free for this task now. The caller should wait and try again."""


@dataclass(frozen=True)
class Task:
    """One grading to run."""

    id: int
    """The caller's number for it, unique among the tasks in an engine."""
    folder: Path
    """The problem's folder, readable by the slot."""
    digest: str
    """The problem's digest at the time of submission. No other version is graded."""
    name: str
    """The submission's file name."""
    language: Language
    source: bytes = field(repr=False)
    device: Device
    gpu: str | None = None
    """The required GPU type, such as ``H100`` or ``H100 80GB``; None for any."""
    benchmarks: bool = True
    """Whether it is timed. Without, it may share a GPU."""
    passed: PassedTests | None = None
    """Its tests, if they have passed before and are not to be run again."""
    kernels: Path | None = None
    """A file of this machine for what was compiled, between tasks of the same submission."""
    compile_only: bool = False
    """Whether it only compiles into `kernels`, for the task that tests; for a local engine."""


@dataclass(frozen=True)
class TaskOutcome:
    """The end of a task: either a report or a failure of the system."""

    task_id: int
    report: Report | None = None
    failure: str | None = None
    """One line for the operator on why there is no report: the slot died, the problem is broken or
    has changed, or no sandbox started. Not the submission's fault, and not shown to its author."""
    has_compiled: bool = False
    """Whether it was a task that only compiles, which has no report."""

    @property
    def is_system_failure(self) -> bool:
        """Whether it gives no verdict on the submission, so the task should be tried again."""
        if self.report is None:
            return not self.has_compiled
        return self.report.verdict is Verdict.JUDGE_ERROR

    @property
    def failure_reason(self) -> str:
        """Why there is no verdict, in one line."""
        return self.failure or (self.report.reason if self.report else "no report")


@dataclass(frozen=True)
class WorkerSlot:
    """A slot that runs one task at a time."""

    name: str
    device: Device
    gpu: str | None
    """The GPU's name as CUDA reports it; None on a CPU, and while the slot starts."""
    free: bool
    """Whether it is ready and has no task."""
    broken: str | None = None
    """Why its process has not become ready several times in a row, in one line. The engine goes on
    trying."""

    def serves(self, device: Device, gpu: str | None) -> bool:
        """Whether a task with these requirements can run here, now or later."""
        return device == self.device and gpu_matches(self.gpu, gpu)


class Engine(ABC):
    """Runs tasks on slots. As a context manager, it closes without waiting.

    Every method can be called from any thread.
    """

    @abstractmethod
    def slots(self) -> list[WorkerSlot]:
        """The current state of every slot, including busy and starting ones."""

    @abstractmethod
    def submit(self, task: Task, on_progress: OnProgress | None = None) -> None:
        """Start a task without waiting for it; `poll` returns its outcome.

        Raises `NoFreeSlot` if no slot that serves it is free.
        """

    @abstractmethod
    def poll(self, timeout_s: float) -> list[TaskOutcome]:
        """The outcomes since the last call. Waits up to `timeout_s` seconds for the first.

        Each outcome is returned once.
        """

    @abstractmethod
    def cancel(self, task_id: int) -> bool:
        """End a task. True if it was running here; it then has no outcome.

        False if it is unknown or has ended; `poll` returns the outcome of an ended task.
        """

    @abstractmethod
    def close(self, drain_s: float) -> None:
        """Accept no more tasks, wait up to `drain_s` seconds for running ones, then fail the rest.

        Frees all resources. `poll` still returns outcomes afterwards. Can be called again.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(0)


def drain_queue(outcomes: Queue[TaskOutcome], timeout_s: float) -> list[TaskOutcome]:
    """Everything in the queue, after waiting up to `timeout_s` seconds for the first item.

    Not of a `SimpleQueue`: held up by the system for `timeout_s` at the wrong moment, its `get`
    waits forever (CPython 3.11).
    """
    found: list[TaskOutcome] = []
    with suppress(Empty):
        found.append(outcomes.get(timeout=max(0.0, timeout_s)))
        while True:
            found.append(outcomes.get_nowait())
    return found
