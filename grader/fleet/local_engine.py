"""The local engine: worker processes on this machine, one per slot.

A thread supervises each slot. It starts the process, sends it tasks, reads its messages, and
restarts it after a fault or an outcome without a verdict. Every task gets an outcome, whatever the
process does.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Queue
from typing import Literal

from grader.fleet.child_process import ChildProcess
from grader.fleet.grading_engine import (
    Engine,
    NoFreeSlot,
    OnProgress,
    Task,
    TaskOutcome,
    WorkerSlot,
    drain_queue,
)
from grader.fleet.job import MAX_SOURCE_BYTES
from grader.fleet.worker_process import TaskRequest, WorkerMessage
from grader.judge.record import Device
from grader.problem import Problem, ProblemError
from grader.report import one_line

log = logging.getLogger(__name__)

MARGIN_S = 300.0
"""Time beyond a problem's `total_s` before a worker process is killed: for the start of a sandbox,
baselines, and waiting for a GPU in use."""

START_TIMEOUT_S = 180.0
"""Time for a worker process to get ready. Importing torch from a cold disk is slow."""

MAX_MESSAGE_BYTES = 8 << 20
"""The longest line from a worker process. A report is a few hundred kilobytes at most."""

BROKEN_STARTS = 3
"""Starts in a row in which a worker process never got ready, after which its slot is broken."""

MAX_RESTART_DELAY_S = 60.0
"""The longest delay between starts of a worker process that never gets ready."""


class LocalEngine(Engine):
    """`count` slots on this machine; with GPUs, one slot per GPU in CUDA_VISIBLE_DEVICES, or all of
    them on the GPU of that number, `gpu`.

    Each slot keeps `warm` sandboxes ready. `command` starts a worker process; its options are
    appended. `margin_s` is added to a problem's `total_s` as the time limit of a task. Raises
    ValueError for fewer GPUs than slots.
    """

    def __init__(
        self,
        count: int,
        device: Device,
        sandbox: Literal["docker", "process"],
        *,
        gpu: str | None = None,
        warm: int = 1,
        command: Sequence[str] = (sys.executable, "-m", "grader.fleet.worker_process"),
        margin_s: float = MARGIN_S,
    ) -> None:
        self._margin_s = margin_s
        self._closed = False
        self._outcomes: Queue[TaskOutcome] = Queue()
        options = ["--sandbox", sandbox, "--warm", str(warm)]
        clean_up = _remove_orphaned_containers if sandbox == "docker" else _no_clean_up
        self._supervisors = [
            _Supervisor(
                f"{index}-{slot_device.replace(':', '-')}",
                device,
                [*command, "--device", slot_device, *options],
                self._outcomes.put,
                clean_up,
            )
            for index, slot_device in enumerate(
                [f"cuda:{gpu}"] * count if gpu else _slot_devices(count, device)
            )
        ]

    def slots(self) -> list[WorkerSlot]:
        """The current state of every slot."""
        return [supervisor.slot() for supervisor in self._supervisors]

    def submit(self, task: Task, on_progress: OnProgress | None = None) -> None:
        """Start a task on a free slot. A problem that cannot be loaded is a failure from `poll`.

        Raises `NoFreeSlot` if no slot that serves it is free, and ValueError for a source larger
        than `MAX_SOURCE_BYTES`.
        """
        if len(task.source) > MAX_SOURCE_BYTES:
            raise ValueError(f"a slot takes at most {MAX_SOURCE_BYTES:,} bytes of source")
        try:
            limit_s = Problem.load(task.folder).spec.limits.total_s + self._margin_s
        except ProblemError as error:
            self._outcomes.put(TaskOutcome(task.id, failure=one_line(str(error))))
            return
        if self._closed or not any(
            supervisor.submit(task, on_progress, limit_s) for supervisor in self._supervisors
        ):
            raise NoFreeSlot(f"no free slot for task {task.id}")

    def poll(self, timeout_s: float) -> list[TaskOutcome]:
        """The outcomes since the last call."""
        return drain_queue(self._outcomes, timeout_s)

    def cancel(self, task_id: int) -> bool:
        """End a task by restarting its worker process."""
        return any(supervisor.cancel(task_id) for supervisor in self._supervisors)

    def close(self, drain_s: float) -> None:
        """Wait for the running tasks, then end every worker process."""
        self._closed = True
        deadline = time.monotonic() + drain_s
        for supervisor in self._supervisors:
            supervisor.retire()
        for supervisor in self._supervisors:
            supervisor.idle.wait(max(0.0, deadline - time.monotonic()))
        for supervisor in self._supervisors:
            supervisor.stop()
        for supervisor in self._supervisors:
            supervisor.join()
        self._supervisors = []


@dataclass(frozen=True)
class _RunningTask:
    task: Task
    on_progress: OnProgress | None
    limit_s: float
    deadline: float
    """By `time.monotonic`."""


class _Fault(Exception):
    """Ends a worker process. The text becomes the failure of its task."""


class _Supervisor:
    """Supervises one slot: a thread, and the worker process that it restarts when it ends."""

    def __init__(
        self,
        name: str,
        device: Device,
        command: list[str],
        on_outcome: Callable[[TaskOutcome], None],
        clean_up: Callable[[], None],
    ) -> None:
        self._name = name
        self._device: Device = device
        self._command = command
        self._on_outcome = on_outcome
        self._clean_up = clean_up
        self._lock = threading.Lock()
        # The lock guards these; only the thread sets `_ready`.
        self._ready = False
        self._gpu: str | None = None
        self._running: _RunningTask | None = None
        self._unsent = b""
        """The part of the request that is still to be written."""
        self._end_reason: str | None = None
        """Why the process must be ended; set by other threads."""
        self._failed_starts = 0
        self._why_not_ready = ""
        self._retired = False
        self._stopping = threading.Event()
        self.idle = threading.Event()
        """Set while no task is running."""
        self.idle.set()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(
            target=self._supervise, name=f"grade-slot-{name}", daemon=True
        )
        self._thread.start()

    def slot(self) -> WorkerSlot:
        with self._lock:
            return self._slot()

    def submit(self, task: Task, on_progress: OnProgress | None, limit_s: float) -> bool:
        """Start the task if this slot serves it and is free."""
        request = TaskRequest(
            task=task.id,
            folder=task.folder.absolute(),
            digest=task.digest,
            name=task.name,
            language=task.language,
            source=task.source,
            benchmarks=task.benchmarks,
            passed=task.passed,
            kernels=task.kernels,
            compile_only=task.compile_only,
        )
        with self._lock:
            slot = self._slot()
            if not slot.free or not slot.serves(task.device, task.gpu):
                return False
            self._running = _RunningTask(task, on_progress, limit_s, time.monotonic() + limit_s)
            self._unsent = request.line()
            self.idle.clear()
            os.eventfd_write(self._wake_fd, 1)
        return True

    def cancel(self, task_id: int) -> bool:
        """If the task is running here, drop it and end the process."""
        with self._lock:
            if self._running is None or self._running.task.id != task_id:
                return False
            self._release()
            self._end_reason = f"task {task_id} was cancelled"
            os.eventfd_write(self._wake_fd, 1)
            return True

    def retire(self) -> None:
        """Accept no more tasks."""
        with self._lock:
            self._retired = True

    def stop(self) -> None:
        """End the process, and do not restart it."""
        with self._lock:
            self._retired = True
            self._end_reason = "the engine was closed before the task was done"
            self._stopping.set()
            os.eventfd_write(self._wake_fd, 1)

    def join(self) -> None:
        """Wait until the process and its sandboxes have ended. Must be the last call."""
        self._thread.join()
        os.close(self._wake_fd)

    def _slot(self) -> WorkerSlot:
        """Requires the lock."""
        ending = self._end_reason is not None or self._retired
        free = self._ready and self._running is None and not ending
        broken = self._why_not_ready if self._failed_starts >= BROKEN_STARTS else None
        return WorkerSlot(self._name, self._device, self._gpu, free, broken)

    def _release(self) -> Task | None:
        """Become idle. Returns the task that was running. Requires the lock."""
        running, self._running, self._unsent = self._running, None, b""
        self.idle.set()
        return running.task if running else None

    def _supervise(self) -> None:
        delay_s = 1.0
        while not self._stopping.is_set():
            was_ready = self._run_process()
            # Restart a process that worked at once, and one that never got ready with backoff.
            delay_s = 1.0 if was_ready else min(2 * delay_s, MAX_RESTART_DELAY_S)
            if not was_ready:
                self._stopping.wait(delay_s)

    def _run_process(self) -> bool:
        """Run one process from its start to its end. Returns whether it was ever ready."""
        try:
            process = ChildProcess(self._command)
        except OSError as error:
            log.error("slot %s cannot be started: %s", self._name, error)
            self._note_start(False, f"it cannot be started: {error}")
            return False
        reason = None
        try:
            self._communicate(process)
        except _Fault as fault:
            reason = str(fault)
        except Exception as error:  # a bug of ours must not cost a task its outcome
            log.exception("the supervisor of slot %s", self._name)
            reason = f"{type(error).__name__}: {error}"
        finally:
            with self._lock:
                was_ready, self._ready = self._ready, False
            process.end()
        self._clean_up()
        reason = reason or f"the slot died ({process.exit_reason()})"
        self._note_start(was_ready, reason)
        with self._lock:
            self._end_reason = None
            task = self._release()
        if not self._stopping.is_set():
            log.warning("slot %s is restarted: %s", self._name, reason)
        if task is not None:
            self._on_outcome(TaskOutcome(task.id, failure=one_line(reason)))
        return was_ready

    def _note_start(self, was_ready: bool, reason: str) -> None:
        with self._lock:
            self._failed_starts = 0 if was_ready else self._failed_starts + 1
            self._why_not_ready = one_line(reason)

    def _communicate(self, process: ChildProcess) -> None:
        """Send requests and read messages until the process ends. Raises `_Fault` to end it."""
        started = time.monotonic()
        received = bytearray()
        while True:
            with self._lock:
                unsent, running = self._unsent, self._running
            limit_s, deadline = START_TIMEOUT_S, started + START_TIMEOUT_S
            if self._ready:
                limit_s, deadline = 0.0, float("inf")
                if running is not None:
                    limit_s, deadline = running.limit_s, running.deadline
            process.wait(self._wake_fd, bool(unsent), deadline)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
            with self._lock:
                if self._end_reason is not None:
                    raise _Fault(self._end_reason)
            if unsent:
                self._send(process, unsent)
            chunk = process.read()
            if chunk == b"":
                return
            if chunk is not None:
                received += chunk
                *lines, received = received.split(b"\n")
                for line in lines:
                    self._on_message(bytes(line))
                if len(received) > MAX_MESSAGE_BYTES:
                    raise _Fault(f"the slot sent a line of more than {MAX_MESSAGE_BYTES:,} bytes")
            if time.monotonic() >= deadline:
                raise _Fault(f"the slot did not answer within {limit_s:g} s")

    def _send(self, process: ChildProcess, unsent: bytes) -> None:
        written = process.write(unsent)
        with self._lock:
            if self._running is not None:
                self._unsent = unsent[written:]

    def _on_message(self, line: bytes) -> None:
        """Handle one line of the process. Raises `_Fault` for an invalid or unexpected message."""
        try:
            message = WorkerMessage.model_validate_json(line)
        except ValueError:
            raise _Fault(f"the slot sent an invalid message: {one_line(repr(line[:80]))}") from None
        with self._lock:
            if message.ready is not None and not self._ready:
                self._ready, self._gpu, self._failed_starts = True, message.ready.gpu, 0
                return
            running = self._running
            if running is None and self._end_reason is not None:
                return  # about a task that was just cancelled
            if running is None or message.task != running.task.id:
                raise _Fault("the slot sent a message about a task that it was not given")
            compiled = message.has_compiled is not None
            outcome = TaskOutcome(running.task.id, message.report, message.failure, compiled)
            if message.progress is None:
                self._release()
                if outcome.is_system_failure:  # the process may be broken
                    self._end_reason = (
                        f"it gave no verdict on task {running.task.id}: {outcome.failure_reason}"
                    )
                    os.eventfd_write(self._wake_fd, 1)
        if message.progress is None:
            self._on_outcome(outcome)
        elif running.on_progress is not None:
            try:
                running.on_progress(message.progress)
            except Exception:
                log.exception("the progress callback of task %d raised", running.task.id)


def _slot_devices(count: int, device: Device) -> list[str]:
    """The value of ``--device`` for each slot."""
    if device == "cpu":
        return ["cpu"] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(index) for index in range(count)]
    if len(gpus) < count:
        raise ValueError(f"{count} slots, but CUDA_VISIBLE_DEVICES names {len(gpus)} GPUs")
    return [f"cuda:{gpu.strip()}" for gpu in gpus[:count]]


def _no_clean_up() -> None:
    """The launchers of the process sandbox clean up after a worker process."""


def _remove_orphaned_containers() -> None:
    """Remove the containers of worker processes that have ended."""
    from grader.sandbox.base import SandboxError
    from grader.sandbox.docker_engine import CLIENT_ERRORS, docker_client, remove_orphans

    try:
        with docker_client() as api:
            remove_orphans(api)
    except (SandboxError, *CLIENT_ERRORS) as error:
        log.warning("containers of an ended slot may remain: %s", error)
