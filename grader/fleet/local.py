"""The embedded engine: slots on this machine, each a process of its own.

A slot is kept by one thread, which starts its process, tells it its task, hears what it says and
ends it when it goes wrong. Whatever a slot does, its keeper answers for it: every task given has an
outcome, and after each fault, or an outcome that is no verdict, there is a new process.
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
from queue import SimpleQueue
from typing import Literal

from grader.fleet.engine import Engine, NoSlot, OnProgress, Outcome, Slot, Task, drained
from grader.fleet.job import MAX_SOURCE_BYTES
from grader.fleet.process import Process
from grader.fleet.worker_process import Order, Word
from grader.judge.record import Device
from grader.problem import Problem, ProblemError
from grader.report import one_line

log = logging.getLogger(__name__)

MARGIN_S = 300.0
"""Time beyond a problem's own `total_s` before a slot is killed: the start of a sandbox, baselines,
and the wait for a GPU that someone else holds."""

START_S = 180.0
"""How long a new slot may take until it is ready; importing torch from a cold disk is slow."""

LINE_BYTES = 8 << 20
"""The longest line that a slot may say. A report is a few hundred kilobytes at the very most."""

LONGEST_PAUSE_S = 60.0
"""Between two starts of a slot that never gets ready."""


class LocalEngine(Engine):
    """`count` slots on this machine; on GPUs one slot each, of those CUDA_VISIBLE_DEVICES names.

    `command` starts a slot; the device and the sandbox are put behind it. `margin_s` is the time
    that a task has beyond its problem's `total_s`. Raises ValueError for fewer GPUs than slots.
    """

    def __init__(
        self,
        count: int,
        device: Device,
        sandbox: Literal["docker", "process"],
        *,
        command: Sequence[str] = (sys.executable, "-m", "grader.fleet.worker_process"),
        margin_s: float = MARGIN_S,
    ) -> None:
        self._margin_s = margin_s
        self._closed = False
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()
        clean_up = _sweep if sandbox == "docker" else _nothing
        self._keepers = [
            _Keeper(
                f"{index}-{place.replace(':', '-')}",
                device,
                [*command, "--device", place, "--sandbox", sandbox],
                self._outcomes.put,
                clean_up,
            )
            for index, place in enumerate(_places(count, device))
        ]

    def slots(self) -> list[Slot]:
        """Every slot, as it is now."""
        return [keeper.slot() for keeper in self._keepers]

    def submit(self, task: Task, on_progress: OnProgress | None = None) -> None:
        """Give a task to a free slot. A problem that cannot be loaded is a failure, told by `poll`.

        Raises `NoSlot` when no slot that serves it is free, and ValueError for a source of more
        than `MAX_SOURCE_BYTES` bytes.
        """
        if len(task.source) > MAX_SOURCE_BYTES:
            raise ValueError(f"a slot takes at most {MAX_SOURCE_BYTES:,} bytes of source")
        try:
            limit_s = Problem.load(task.folder).spec.limits.total_s + self._margin_s
        except ProblemError as error:
            self._outcomes.put(Outcome(task.id, failure=one_line(str(error))))
            return
        if self._closed or not any(k.give(task, on_progress, limit_s) for k in self._keepers):
            raise NoSlot(f"no free slot for task {task.id}")

    def poll(self, timeout_s: float) -> list[Outcome]:
        """What has ended since the last call."""
        return drained(self._outcomes, timeout_s)

    def cancel(self, task_id: int) -> bool:
        """End a task by starting its slot anew."""
        return any(keeper.cancel(task_id) for keeper in self._keepers)

    def close(self, drain_s: float) -> None:
        """Wait for the running tasks, then end every slot."""
        self._closed = True
        deadline = time.monotonic() + drain_s
        for keeper in self._keepers:
            keeper.retire()
        for keeper in self._keepers:
            keeper.idle.wait(max(0.0, deadline - time.monotonic()))
        for keeper in self._keepers:
            keeper.stop()
        for keeper in self._keepers:
            keeper.join()
        self._keepers = []


@dataclass(frozen=True)
class _Duty:
    """What a slot is at."""

    task: Task
    on_progress: OnProgress | None
    limit_s: float
    deadline: float


class _Fault(Exception):
    """Ends a slot's process; the text says why, for the outcome of its task."""


class _Keeper:
    """Keeps one slot: a thread, and the process that it starts anew whenever that ends."""

    def __init__(
        self,
        name: str,
        device: Device,
        command: list[str],
        ended: Callable[[Outcome], None],
        clean_up: Callable[[], None],
    ) -> None:
        self._name = name
        self._device: Device = device
        self._command = command
        self._ended = ended
        self._clean_up = clean_up
        self._lock = threading.Lock()
        # The lock guards these; only the thread sets `_ready`.
        self._ready = False
        self._gpu: str | None = None
        self._duty: _Duty | None = None
        self._untold = b""
        """What of the order the slot has not taken yet."""
        self._order_to_end: str | None = None
        """Why the process shall end, said by another thread."""
        self._retired = False
        self._stopping = threading.Event()
        self.idle = threading.Event()
        """No task is under way."""
        self.idle.set()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._keep, name=f"grade-slot-{name}", daemon=True)
        self._thread.start()

    def slot(self) -> Slot:
        with self._lock:
            return Slot(self._name, self._device, self._gpu, self._is_free())

    def give(self, task: Task, on_progress: OnProgress | None, limit_s: float) -> bool:
        """Take the task if this slot serves it and is free."""
        order = Order(
            task=task.id,
            folder=task.folder.absolute(),
            digest=task.digest,
            name=task.name,
            language=task.language,
            source=task.source,
        )
        with self._lock:
            slot = Slot(self._name, self._device, self._gpu, self._is_free())
            if not slot.free or not slot.serves(task.device, task.gpu):
                return False
            self._duty = _Duty(task, on_progress, limit_s, time.monotonic() + limit_s)
            self._untold = order.line()
            self.idle.clear()
            os.eventfd_write(self._wake, 1)
        return True

    def cancel(self, task_id: int) -> bool:
        """Forget the task and end the process, if it is at this task."""
        with self._lock:
            if self._duty is None or self._duty.task.id != task_id:
                return False
            self._release()
            self._order_to_end = f"task {task_id} was cancelled"
            os.eventfd_write(self._wake, 1)
            return True

    def retire(self) -> None:
        """Take no more tasks."""
        with self._lock:
            self._retired = True

    def stop(self) -> None:
        """End the process, and start no other."""
        with self._lock:
            self._retired = True
            self._order_to_end = "the engine was closed before it was done"
            self._stopping.set()
            os.eventfd_write(self._wake, 1)

    def join(self) -> None:
        """Wait until the process and its sandboxes are gone. The last call of all."""
        self._thread.join()
        os.close(self._wake)

    def _is_free(self) -> bool:
        ending = self._order_to_end is not None
        return self._ready and self._duty is None and not (ending or self._retired)

    def _release(self) -> Task | None:
        """With the lock held: the slot is at no task any more; which one it was at."""
        duty, self._duty, self._untold = self._duty, None, b""
        self.idle.set()
        return duty.task if duty else None

    def _keep(self) -> None:
        pause_s = 1.0
        while not self._stopping.is_set():
            was_ready = self._live()
            # One that worked is replaced at once; one that never did is tried ever more rarely.
            pause_s = 1.0 if was_ready else min(2 * pause_s, LONGEST_PAUSE_S)
            if not was_ready:
                self._stopping.wait(pause_s)

    def _live(self) -> bool:
        """One process from its start to its end; whether it was ever ready."""
        try:
            process = Process(self._command)
        except OSError as error:
            log.error("slot %s cannot be started: %s", self._name, error)
            return False
        why = None
        try:
            self._attend(process)
        except _Fault as fault:
            why = str(fault)
        except Exception as error:  # a bug of ours shall not cost a task its outcome
            log.exception("the keeper of slot %s", self._name)
            why = f"{type(error).__name__}: {error}"
        finally:
            with self._lock:
                was_ready, self._ready = self._ready, False
            process.end()
        self._clean_up()
        why = why or f"the slot died ({process.ending()})"
        with self._lock:
            self._order_to_end = None
            task = self._release()
        if not self._stopping.is_set():
            log.warning("slot %s is started anew: %s", self._name, why)
        if task is not None:
            self._ended(Outcome(task.id, failure=one_line(why)))
        return was_ready

    def _attend(self, process: Process) -> None:
        """Tell it its tasks and hear it until it dies. Raises `_Fault` when it shall be ended."""
        started = time.monotonic()
        heard = bytearray()
        while True:
            with self._lock:
                untold, duty = self._untold, self._duty
            limit, deadline = START_S, started + START_S
            if self._ready:
                limit, deadline = (duty.limit_s, duty.deadline) if duty else (0.0, float("inf"))
            process.wait(self._wake, bool(untold), deadline)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            with self._lock:
                if self._order_to_end is not None:
                    raise _Fault(self._order_to_end)
            if untold:
                self._tell(process, untold)
            chunk = process.read()
            if chunk == b"":
                return
            if chunk is not None:
                heard += chunk
                *lines, heard = heard.split(b"\n")
                for line in lines:
                    self._hear(bytes(line))
                if len(heard) > LINE_BYTES:
                    raise _Fault(f"the slot said a line of more than {LINE_BYTES:,} bytes")
            if time.monotonic() >= deadline:
                raise _Fault(f"the slot did not answer within {limit:g} s")

    def _tell(self, process: Process, untold: bytes) -> None:
        written = process.write(untold)
        with self._lock:
            if self._duty is not None:
                self._untold = untold[written:]

    def _hear(self, line: bytes) -> None:
        """One line of the slot. Raises `_Fault` when it is none that it may say now."""
        try:
            word = Word.model_validate_json(line)
        except ValueError:
            raise _Fault(f"the slot said what no slot says: {one_line(repr(line[:80]))}") from None
        with self._lock:
            if word.ready is not None and not self._ready:
                self._ready, self._gpu = True, word.ready.gpu
                return
            duty = self._duty
            if duty is None and self._order_to_end is not None:
                return  # of a task that was cancelled just now
            if duty is None or word.task != duty.task.id:
                raise _Fault("the slot spoke of a task that it was not given")
            outcome = Outcome(duty.task.id, word.report, word.failure)
            if word.progress is None:
                self._release()
                if outcome.is_ours:  # who knows what is wrong with the process
                    self._order_to_end = f"it gave no verdict on task {duty.task.id}"
                    os.eventfd_write(self._wake, 1)
        if word.progress is None:
            self._ended(outcome)
        elif duty.on_progress is not None:
            try:
                duty.on_progress(word.progress)
            except Exception:
                log.exception("whoever watches task %d raised", duty.task.id)


def _places(count: int, device: Device) -> list[str]:
    """What each slot is told as its device."""
    if device == "cpu":
        return ["cpu"] * count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(index) for index in range(count)]
    if len(gpus) < count:
        raise ValueError(f"{count} slots, but CUDA_VISIBLE_DEVICES names {len(gpus)} GPUs")
    return [f"cuda:{gpu.strip()}" for gpu in gpus[:count]]


def _nothing() -> None:
    """The process sandbox's own launchers clean up behind a slot."""


def _sweep() -> None:
    """Remove the containers of slots that are gone."""
    from grader.sandbox.base import SandboxError
    from grader.sandbox.docker_engine import CLIENT_ERRORS, docker_client, remove_orphans

    try:
        with docker_client() as api:
            remove_orphans(api)
    except (SandboxError, *CLIENT_ERRORS) as error:
        log.warning("containers of a slot that is gone may be left: %s", error)
