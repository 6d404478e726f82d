"""An engine that tests control, and a job source that can become unreachable."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from grader.board import BoardError
from grader.fleet.grading_engine import (
    Engine,
    NoFreeSlot,
    OnProgress,
    Task,
    TaskOutcome,
    WorkerSlot,
)
from grader.fleet.local_engine import LocalEngine
from grader.fleet.ray_actor import GradingActor, SandboxName
from grader.fleet.worker_process import TaskRequest, TaskRunner, WorkerMessage
from grader.judge import Progress
from grader.judge.record import Device
from grader.problem import Problem
from grader.report import Report, Verdict
from grader.sandbox.owner import make_owned_folder
from grader.submission import Submission
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = Problem.load(ROOT / "problems/softmax")


def with_long_limit(folder: Path) -> Problem:
    """A copy of the problem in `folder`, whose limit of a call is longer than any test."""
    copy = folder / PROBLEM.folder.name
    shutil.copytree(PROBLEM.folder, copy)
    with (copy / "problem.yaml").open("a") as file:
        file.write("\nlimits: {call_s: 500}\n")
    return Problem.load(copy)


class FakeEngine(Engine):
    """`count` slots, whose tasks end when the test ends them."""

    def __init__(self, count: int = 1, device: Device = "cpu", gpu: str | None = None) -> None:
        self.count, self.device, self.gpu = count, device, gpu
        self.tasks: dict[int, Task] = {}
        self.watchers: dict[int, OnProgress] = {}
        self.cancelled: list[Task] = []
        self.refuses = False
        self.polls = 0
        self._outcomes: Queue[TaskOutcome] = Queue()
        self._lock = threading.Lock()

    def slots(self) -> list[WorkerSlot]:
        with self._lock:
            busy = len(self.tasks)
        return [WorkerSlot(f"{i}", self.device, self.gpu, i >= busy) for i in range(self.count)]

    def submit(self, task: Task, on_progress: OnProgress | None = None) -> None:
        with self._lock:
            if self.refuses or len(self.tasks) >= self.count:
                raise NoFreeSlot("full")
            assert on_progress is not None
            self.watchers[task.id] = on_progress
            self.tasks[task.id] = task

    def poll(self, timeout_s: float) -> list[TaskOutcome]:
        self.polls += 1
        try:
            return [self._outcomes.get(timeout=timeout_s or 0.001)]
        except Empty:
            return []

    def cancel(self, task_id: int) -> bool:
        with self._lock:
            task = self.tasks.pop(task_id, None)
        if task is not None:
            self.cancelled.append(task)
        return task is not None

    def close(self, drain_s: float) -> None:
        self.count = 0

    def task(self) -> Task:
        """Wait for the one running task."""
        until(lambda: len(self.tasks) == 1)
        (task,) = self.tasks.values()
        return task

    def report_progress(self, stage: str) -> None:
        self.watchers[self.task().id](Progress(stage))

    def end(
        self, report: Report | None = None, failure: str | None = None, source: bytes | None = None
    ) -> Task:
        """End the one running task, or the one with this source."""
        found = [task for task in self.tasks.values() if task.source == source]
        task = found[0] if found else self.task()
        with self._lock:
            del self.tasks[task.id]
        self._outcomes.put(TaskOutcome(task.id, report, failure))
        return task


LIGHT_WORKER = """
import grader.fleet.worker_process as worker_process
from tests.fleet.fake import light_report

worker_process._gpu = lambda device: None
worker_process.TaskRunner._grade = light_report
worker_process.main()
"""


def light_report(runner: TaskRunner, request: TaskRequest) -> Report:
    """Stands for a grading in a worker process, which imports no torch then. A wrong answer; for a
    source that is the path of a file, once that file exists."""
    runner._send(WorkerMessage(task=request.task, progress=Progress("test")))
    if request.source.startswith(b"/"):
        until(Path(os.fsdecode(request.source)).exists)
    return Report(
        problem=request.folder.name,
        problem_digest=request.digest,
        submission_sha256=Submission(request.name, request.language, request.source).sha256,
        submission_name=request.name,
        language=request.language,
        verdict=Verdict.WRONG_ANSWER,
        reason="the light worker takes nothing for a softmax",
        device="cpu",
        sandbox="process",
        seed=1,
    )


class LightActor(GradingActor):
    """The actor on a node, perhaps with a fake GPU. Its worker process grades nothing."""

    def __init__(self, device: Device, sandbox: SandboxName) -> None:
        self._root = make_owned_folder()
        command = (sys.executable, "-c", LIGHT_WORKER)
        self._engine = LocalEngine(1, device, sandbox, command=command)


class UnreachableSource:
    """A source that raises while `away` is set, before or after it does the operation."""

    def __init__(self, source: Any, when: str = "before") -> None:
        self._source, self._when = source, when
        self.away = threading.Event()
        self.failed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._source, name)

        def call(*args: Any, **options: Any) -> Any:
            unreachable = self.away.is_set()
            if unreachable and self._when == "before" and name != "announce":
                self.failed.append(name)
                raise BoardError("the database is unreachable")
            answer = method(*args, **options)
            if unreachable and name not in ("announce", "claim"):
                self.failed.append(name)
                raise BoardError("the reply was lost")
            return answer

        return call
