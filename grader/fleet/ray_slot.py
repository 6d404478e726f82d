"""A slot on a Ray cluster: an actor, placed once and kept for further tasks.

A thread runs each slot. It has Ray place the actor, sends it tasks, and reads their messages. It
releases the actor after a long idle time, since others may use the cluster, and after a grading
without a verdict, since the actor may be broken.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from grader.fleet.grading_engine import OnProgress, Task, TaskOutcome
from grader.fleet.local_engine import MARGIN_S
from grader.fleet.ray_actor import GradingActor, SandboxName
from grader.fleet.worker_process import WorkerMessage
from grader.judge.record import Device
from grader.problem import Problem
from grader.report import one_line

log = logging.getLogger(__name__)

PING_INTERVAL_S = 5.0
"""Interval of pings to an idle actor."""

PING_TIMEOUT_S = 10.0
"""Time for an actor to answer a ping."""

GRACE_S = 30.0
"""Time for an actor to clean up its node before it is killed."""

UNKNOWN_GPU = "GPU"
"""The type of a GPU that Ray does not name."""

SlotKind = tuple[Device, str | None]
"""A device, and the GPU type as Ray names it."""


@dataclass(eq=False)
class TaskRun:
    """A task with everything that its node needs."""

    task: Task
    digest: str
    files: dict[str, bytes]
    limit_s: float
    """Time after its start on the node by which it must have ended there."""
    on_progress: OnProgress | None
    cancelled: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _settled: bool = False

    @classmethod
    def of(cls, task: Task, on_progress: OnProgress | None) -> TaskRun:
        """Raises `ProblemError` or OSError for a problem that cannot be loaded."""
        problem = Problem.load(task.folder)
        # The local engine on the node has a much shorter limit.
        limit_s = problem.spec.limits.total_s + MARGIN_S + GRACE_S
        return cls(task, problem.digest, dict(problem.files), limit_s, on_progress)

    def settle(self) -> bool:
        """Take the right to give the task's outcome. True for the first caller only."""
        with self._lock:
            first, self._settled = not self._settled, True
            return first

    def cancel(self) -> bool:
        """Cancel the task. False if it already has an outcome."""
        first = self.settle()
        if first:
            self.cancelled.set()
        return first


class RaySlot:
    """A slot on the cluster: an actor, and the thread that talks to it."""

    def __init__(
        self,
        kind: SlotKind,
        sandbox: SandboxName,
        run: TaskRun,
        placement_timeout_s: float,
        idle_s: float,
        on_outcome: Callable[[TaskOutcome], None],
        on_gone: Callable[[RaySlot], None],
    ) -> None:
        """Starts with this task. Its thread calls `on_gone` once it has released everything."""
        self.kind = kind
        self._sandbox: SandboxName = sandbox
        self._placement_timeout_s, self._idle_s = placement_timeout_s, idle_s
        self._on_outcome, self._on_gone = on_outcome, on_gone
        self._changed = threading.Condition()
        # The condition guards these two.
        self._run: TaskRun | None = run
        self._retired = False
        self._actor: _ActorHandle | None = None
        """Used by the thread only."""
        self._thread = threading.Thread(
            target=self._serve, name=f"grade-ray-{run.task.id}", daemon=True
        )
        self._thread.start()

    @property
    def run(self) -> TaskRun | None:
        """The current task, including the time in which its node is cleaned up."""
        with self._changed:
            return self._run

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a task."""
        with self._changed:
            return self._run is None and not self._retired

    def submit(self, run: TaskRun) -> bool:
        """Start this task if the slot is idle."""
        with self._changed:
            if self._run is not None or self._retired:
                return False
            self._run = run
            self._changed.notify()
            return True

    def retire(self) -> None:
        """Accept no more tasks, and end after the current one."""
        with self._changed:
            self._retired = True
            self._changed.notify()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has released everything."""
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        while (run := self._next()) is not None:
            outcome = self._grade(run)
            if outcome is None or outcome.is_system_failure:  # the actor may be broken
                self.retire()
                self._release_actor()
            with self._changed:
                self._run = None
            if outcome is not None and run.settle():
                self._on_outcome(outcome)
        self._release_actor()
        self._on_gone(self)

    def _next(self) -> TaskRun | None:
        """Wait for the next task. None when the slot should end."""
        end_at = time.monotonic() + self._idle_s
        while True:
            with self._changed:
                if self._run is None and not self._retired:
                    self._changed.wait(min(PING_INTERVAL_S, max(0.0, end_at - time.monotonic())))
                if self._run is None and time.monotonic() >= end_at:
                    self._retired = True
                if self._run is not None or self._retired:
                    return self._run
            if self._actor is not None and not self._actor.is_alive():
                self._release_actor()
                end_at = 0.0  # a task submitted meanwhile gets a new actor

    def _release_actor(self) -> None:
        actor, self._actor = self._actor, None
        if actor is None:
            return
        try:
            actor.end()
        except Exception:  # the task must still get its outcome
            log.exception("files or processes of an actor may remain on its node")

    def _grade(self, run: TaskRun) -> TaskOutcome | None:
        """Run a task to its end, whatever Ray raises. None if it was cancelled."""
        try:
            if self._actor is not None and not self._actor.is_alive():
                self._release_actor()
            self._actor = self._actor or _ActorHandle(self.kind, self._sandbox)
            return self._read(run, self._actor.grade(run))
        except Exception as error:
            known = isinstance(error, RayError)
            log.warning("task %d on Ray: %s", run.task.id, error, exc_info=not known)
            reason = f"lost on the cluster: {type(error).__name__}: {error}"
            return TaskOutcome(run.task.id, failure=one_line(reason))

    def _read(self, run: TaskRun, stream: Any) -> TaskOutcome | None:
        """Read the messages of a task to its outcome. Raises what Ray raises if it is lost."""
        task_id = run.task.id
        deadline = time.monotonic() + self._placement_timeout_s
        timeout_text = f"not placed within {self._placement_timeout_s:g} s"
        while True:
            ready, _ = ray.wait([stream], timeout=0.2, fetch_local=False)
            if run.cancelled.is_set():
                return None
            if not ready:
                if time.monotonic() >= deadline:
                    return TaskOutcome(task_id, failure=timeout_text)
                continue
            try:
                line = ray.get(next(stream), timeout=GRACE_S)
            except StopIteration:
                return TaskOutcome(task_id, failure="the task ended without an outcome")
            message = WorkerMessage.model_validate_json(line)
            if message.report is not None or message.failure is not None:
                return TaskOutcome(task_id, message.report, message.failure)
            if message.ready is not None:
                deadline = time.monotonic() + run.limit_s
                timeout_text = f"its node did not answer within {run.limit_s:g} s"
            elif message.progress is not None and run.on_progress is not None:
                try:
                    run.on_progress(message.progress)
                except Exception:
                    log.exception("the progress callback of task %d raised", task_id)


_RemoteGradingActor: Any = ray.remote(GradingActor)


class _ActorHandle:
    """A `GradingActor` on a node, once Ray has placed it. It is never restarted."""

    def __init__(self, kind: SlotKind, sandbox: SandboxName) -> None:
        device, gpu = kind
        resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(device == "cuda")}
        if gpu not in (None, UNKNOWN_GPU):
            resources["accelerator_type"] = gpu
        self._device = device
        self._handle = _RemoteGradingActor.options(
            **resources,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,  # one thread grades, the other answers pings and closes
        ).remote(device, sandbox)
        self._placed = self._handle.ping.remote()

    def grade(self, run: TaskRun) -> Any:
        """Submit a task. Returns the stream of its messages."""
        task = run.task
        fields = dataclasses.asdict(task) | {
            "folder": task.folder.name,
            "device": self._device,
            "gpu": None,
        }
        method = self._handle.grade.options(num_returns="streaming")
        return method.remote(fields, run.digest, run.files)

    def is_alive(self) -> bool:
        """Whether it answers a ping."""
        try:
            ray.get(self._handle.ping.remote(), timeout=PING_TIMEOUT_S)
        except Exception as error:
            known = isinstance(error, RayError)
            log.warning("an idle actor is gone: %s", error, exc_info=not known)
            return False
        return True

    def end(self) -> None:
        """Have the actor clean up its node, then kill it. Only kills it if it has no node yet, or
        takes too long."""
        with suppress(RayError):
            if ray.wait([self._placed], timeout=0)[0]:
                ray.get(self._handle.close.remote(), timeout=GRACE_S)
        with suppress(RayError):
            ray.kill(self._handle)
