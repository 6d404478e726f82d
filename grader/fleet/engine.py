"""What runs gradings, seen from the ledger: one small protocol, whatever is behind it.

An engine holds no truth. It is given a task and hands back one outcome, or none when it dies; what
becomes of the job then is for the ledger to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from grader.fleet.job import is_of_type
from grader.judge import Progress
from grader.judge.record import Device
from grader.report import Report, Verdict
from grader.submission import Language

OnProgress = Callable[[Progress], None]
"""Called from a thread of the engine's; it shall be quick. What it raises is logged."""


class NoSlot(Exception):
    """No slot is free for this task now. For the caller to wait; nobody's fault."""


@dataclass(frozen=True)
class Task:
    """One grading to be done."""

    id: int
    """The caller's number for it; no two tasks that an engine holds at once have the same."""
    folder: Path
    """The problem's folder, where the slot can read it."""
    digest: str
    """Of the problem as it was when the submission was handed in; another one is not graded."""
    name: str
    """The submission's file name."""
    language: Language
    source: bytes = field(repr=False)
    device: Device
    gpu: str | None = None
    """The GPU type asked for, such as ``H100`` or ``H100 80GB``; None takes any."""


@dataclass(frozen=True)
class Outcome:
    """How a task ended: with a report, or with a failure of ours. Exactly one is set."""

    task_id: int
    report: Report | None = None
    failure: str | None = None
    """Why there is no report, in one line for the operator: the slot died, the problem is broken
    or has changed, no sandbox could be started. Never the submission's fault, nor shown as that."""

    @property
    def is_ours(self) -> bool:
        """Whether it says nothing of the submission, so that the task wants another try."""
        return self.report is None or self.report.verdict is Verdict.JUDGE_ERROR


@dataclass(frozen=True)
class Slot:
    """A place where one task at a time can run."""

    name: str
    device: Device
    gpu: str | None
    """The GPU's name as CUDA tells it; null on a CPU, and while the slot starts."""
    free: bool
    """Whether it is up and has no task."""

    def serves(self, device: Device, gpu: str | None) -> bool:
        """Whether a task that asks for this may run here, now or later."""
        return device == self.device and is_of_type(self.gpu, gpu)


class Engine(ABC):
    """Runs tasks on slots. A context manager, which closes without waiting.

    Every method may be called from any thread.
    """

    @abstractmethod
    def slots(self) -> list[Slot]:
        """Every slot there is, busy or starting ones too, as it is now."""

    @abstractmethod
    def submit(self, task: Task, on_progress: OnProgress | None = None) -> None:
        """Start a task; its outcome will come from `poll`. Returns without waiting for it.

        Raises `NoSlot` when no slot that serves it is free.
        """

    @abstractmethod
    def poll(self, timeout_s: float) -> list[Outcome]:
        """What has ended since the last call; waits for the first for at most `timeout_s` seconds.

        Each outcome is told once.
        """

    @abstractmethod
    def cancel(self, task_id: int) -> bool:
        """End a task: True, and no outcome will come of it. False when it is not running here, or
        has ended already: then its outcome has come or will."""

    @abstractmethod
    def close(self, drain_s: float) -> None:
        """Take no more tasks, wait for the running ones for at most `drain_s` seconds, then end
        them as failures; leave nothing behind. `poll` still tells what has ended. Repeatable."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(0)


def drained(outcomes: SimpleQueue[Outcome], timeout_s: float) -> list[Outcome]:
    """All that is in the queue as soon as anything is; nothing after so many seconds."""
    found: list[Outcome] = []
    with suppress(Empty):
        found.append(outcomes.get(timeout=max(0.0, timeout_s)))
        while True:
            found.append(outcomes.get_nowait())
    return found
