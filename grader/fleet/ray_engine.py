"""The engine for a Ray cluster: each slot is a Ray actor, placed on a node with free resources.

A task goes to an idle actor, or has Ray place a new one (`grader.fleet.ray_slot`). Ray retries
nothing: a task lost with its node is a failure, and the ledger decides on another try.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from queue import Queue

import ray
from ray._private.state import available_resources_per_node  # Ray has no other place for it
from ray.exceptions import RayError

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
from grader.fleet.ray_actor import SandboxName
from grader.fleet.ray_slot import UNKNOWN_GPU, RaySlot, SlotKind, TaskRun
from grader.problem import ProblemError
from grader.report import one_line

log = logging.getLogger(__name__)

PLACEMENT_TIMEOUT_S = 600.0
"""Time for Ray to place an actor and for its slot to start; others may use the cluster too."""

IDLE_S = 120.0
"""Idle time after which an actor is released."""

RETRY_DELAY_S = 10.0
"""Time until a cluster that did not answer is asked again."""

GPU_TYPE_PREFIX = "accelerator_type:"
"""Prefix of the resource of a node that names its GPU type."""


class RayEngine(Engine):
    """Slots on a running Ray cluster: one per GPU, or one per CPU if no node has a GPU.

    A slot's GPU is Ray's type, such as ``H100``. `address` ``auto`` is RAY_ADDRESS, or else this
    machine's cluster. Raises `ConnectionError` if there is no cluster.
    """

    def __init__(
        self,
        sandbox: SandboxName,
        address: str = "auto",
        *,
        placement_timeout_s: float = PLACEMENT_TIMEOUT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._sandbox: SandboxName = sandbox
        self._placement_timeout_s = placement_timeout_s
        self._idle_s = idle_s
        self._owns_connection = not ray.is_initialized()
        if self._owns_connection:
            if address == "auto":
                address = os.environ.get("RAY_ADDRESS") or address  # as Ray does
            _check_reachable(address)
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except ValueError as error:  # an invalid address
                raise ConnectionError(f"there is no Ray cluster at {address}: {error}") from None
        self._outcomes: Queue[TaskOutcome] = Queue()
        self._lock = threading.Lock()
        self._ray_slots: list[RaySlot] = []
        """Those with resources on a node, guarded by the lock."""
        self._closed = False
        self._retry_at = 0.0

    def slots(self) -> list[WorkerSlot]:
        """The slots that the cluster reports; none while it does not answer."""
        if self._closed or time.monotonic() < self._retry_at:
            return []
        try:
            unused = available_resources_per_node()  # type: ignore[no-untyped-call]
            nodes = [
                (node["Resources"], unused.get(node["NodeID"], {}))
                for node in ray.nodes()  # type: ignore[no-untyped-call]
                if node["Alive"]
            ]
        except (RayError, RuntimeError, OSError) as error:
            log.warning("the Ray cluster does not answer: %s", one_line(str(error)))
            self._retry_at = time.monotonic() + RETRY_DELAY_S
            return []
        with self._lock:
            ours = [(slot.kind, slot.is_idle) for slot in self._ray_slots]
        busy = Counter(kind for kind, is_idle in ours if not is_idle)
        idle = Counter(kind for kind, is_idle in ours if is_idle)
        return _slots(nodes, busy, idle)

    def submit(self, task: Task, on_progress: OnProgress | None = None) -> None:
        """Start a task on an idle actor, or have Ray place a new one. A problem that cannot be
        loaded is a failure from `poll`.

        Raises `NoFreeSlot` if no slot that serves it is free, and ValueError for a source larger
        than `MAX_SOURCE_BYTES`.
        """
        if len(task.source) > MAX_SOURCE_BYTES:
            raise ValueError(f"a slot takes at most {MAX_SOURCE_BYTES:,} bytes of source")
        try:
            run = TaskRun.of(task, on_progress)
        except (ProblemError, OSError) as error:
            self._outcomes.put(TaskOutcome(task.id, failure=one_line(str(error))))
            return
        kinds = [
            (slot.device, slot.gpu)
            for slot in self.slots()
            if slot.free and slot.serves(task.device, task.gpu)
        ]
        if not kinds:
            raise NoFreeSlot(f"no free slot for task {task.id}")
        with self._lock:
            if self._closed:
                raise NoFreeSlot("the engine is closed")
            if not any(slot.kind in kinds and slot.submit(run) for slot in self._ray_slots):
                self._ray_slots.append(self._ray_slot(kinds[0], run))

    def poll(self, timeout_s: float) -> list[TaskOutcome]:
        """The outcomes since the last call."""
        return drain_queue(self._outcomes, timeout_s)

    def cancel(self, task_id: int) -> bool:
        """End a task. Its slot is free once its node is cleaned up."""
        with self._lock:
            runs = [slot.run for slot in self._ray_slots]
        return any(run.cancel() for run in runs if run is not None and run.task.id == task_id)

    def close(self, drain_s: float) -> None:
        """Wait for the running tasks, then end them, release all actors, and disconnect."""
        with self._lock:
            self._closed = True
            slots = list(self._ray_slots)
        deadline = time.monotonic() + drain_s
        for slot in slots:
            slot.retire()
        for slot in slots:
            slot.join(max(0.0, deadline - time.monotonic()))
        for slot in slots:
            run = slot.run
            if run is not None and run.cancel():
                failure = "the engine was closed before the task was done"
                self._outcomes.put(TaskOutcome(run.task.id, failure=failure))
        for slot in slots:
            slot.join()
        if self._owns_connection and ray.is_initialized():
            ray.shutdown()

    def _ray_slot(self, kind: SlotKind, run: TaskRun) -> RaySlot:
        def on_gone(slot: RaySlot) -> None:
            with self._lock:
                self._ray_slots.remove(slot)

        timeouts = (self._placement_timeout_s, self._idle_s)
        return RaySlot(kind, self._sandbox, run, *timeouts, self._outcomes.put, on_gone)


def _check_reachable(address: str) -> None:
    """Raise `ConnectionError` if nothing listens there. Ray itself would retry for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConnectionError(f"there is no Ray cluster at {address}: {error}") from None


def _slots(
    nodes: list[tuple[dict[str, float], dict[str, float]]],
    busy: Counter[SlotKind],
    idle: Counter[SlotKind],
) -> list[WorkerSlot]:
    """The slots of nodes, given as pairs of total and unused resources.

    `busy` and `idle` count our own actors. A slot is free if an actor of ours is idle there, or if
    nodes of its kind have a GPU (or CPU) unused for a new actor.
    """
    unit = "GPU" if any("GPU" in total for total, _ in nodes) else "CPU"
    counts: Counter[SlotKind] = Counter()
    unused: Counter[SlotKind] = Counter()
    for total, left in nodes:
        types = [
            name.removeprefix(GPU_TYPE_PREFIX) for name in total if name.startswith(GPU_TYPE_PREFIX)
        ]
        kind: SlotKind = ("cpu", None)
        if unit == "GPU":
            kind = ("cuda", types[0] if types else UNKNOWN_GPU)
        counts[kind] += int(total.get(unit, 0))
        unused[kind] += int(left.get(unit, 0))
    slots = []
    for kind, count in sorted(counts.items(), key=str):
        placeable = max(0, min(count - busy[kind] - idle[kind], unused[kind]))
        free = min(count - busy[kind], idle[kind]) + placeable
        device, gpu = kind
        slots += [WorkerSlot(f"{gpu or device}-{i}", device, gpu, i < free) for i in range(count)]
    return slots
