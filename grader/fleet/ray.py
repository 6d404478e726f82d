"""The engine for a Ray cluster: each slot is a Ray actor, placed where there is room.

An actor is placed for a task that finds none waiting (`grader.fleet.ray_slot`), and is warm for the
next one (`ray_actor`). Ray retries nothing: a task that is lost with its node is a failure,
and it is for the ledger to give it another try.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from queue import SimpleQueue

import ray
from ray._private.state import available_resources_per_node  # Ray has no other place for it
from ray.exceptions import RayError

from grader.fleet.engine import Engine, NoSlot, OnProgress, Outcome, Slot, Task, drained
from grader.fleet.job import MAX_SOURCE_BYTES
from grader.fleet.ray_actor import SandboxName
from grader.fleet.ray_slot import UNKNOWN, Kind, Run, Seat
from grader.problem import ProblemError
from grader.report import one_line

log = logging.getLogger(__name__)

PLACED_S = 600.0
"""How long a task may wait for its place and its slot; others may use the cluster too."""

IDLE_S = 120.0
"""How long an actor waits for another task before it is let go."""

RETRY_S = 10.0
"""How long a cluster that did not answer is left alone."""

TYPE = "accelerator_type:"
"""What stands before a GPU's type in the resources of a node."""


class RayEngine(Engine):
    """Slots on a Ray cluster that is there: one per GPU, or one per CPU where no node has a GPU.

    A slot's GPU is named by Ray's type, such as ``H100``. Raises `ConnectionError` when there is no
    cluster at `address`, which for ``auto`` is that of RAY_ADDRESS, or of this machine.
    """

    def __init__(
        self,
        sandbox: SandboxName,
        address: str = "auto",
        *,
        placed_s: float = PLACED_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._sandbox: SandboxName = sandbox
        self._placed_s = placed_s
        self._idle_s = idle_s
        self._owns = not ray.is_initialized()
        if self._owns:
            if address == "auto":
                address = os.environ.get("RAY_ADDRESS") or address  # as Ray would
            _knock(address)
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except ValueError as error:  # it makes nothing of the address
                raise ConnectionError(f"there is no Ray cluster at {address}: {error}") from None
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._lock = threading.Lock()
        self._seats: list[Seat] = []
        """Until nothing of them is left on their nodes. The lock guards it."""
        self._closed = False
        self._away_until = 0.0

    def slots(self) -> list[Slot]:
        """The cluster's slots as it tells of them; none while it does not answer."""
        if self._closed or time.monotonic() < self._away_until:
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
            self._away_until = time.monotonic() + RETRY_S
            return []
        with self._lock:
            ours = [(seat.kind, seat.is_idle) for seat in self._seats]
        used = Counter(kind for kind, is_idle in ours if not is_idle)
        idle = Counter(kind for kind, is_idle in ours if is_idle)
        return _slots(nodes, used, idle)

    def submit(self, task: Task, on_progress: OnProgress | None = None) -> None:
        """Give a task to an actor that waits, or ask Ray to place one. A problem that cannot be
        loaded is a failure, told by `poll`.

        Raises `NoSlot` when no slot that serves it is free, and ValueError for a source of more
        than `MAX_SOURCE_BYTES` bytes.
        """
        if len(task.source) > MAX_SOURCE_BYTES:
            raise ValueError(f"a slot takes at most {MAX_SOURCE_BYTES:,} bytes of source")
        try:
            run = Run.of(task, on_progress)
        except (ProblemError, OSError) as error:
            self._outcomes.put(Outcome(task.id, failure=one_line(str(error))))
            return
        fit = [slot for slot in self.slots() if slot.free and slot.serves(task.device, task.gpu)]
        if not fit:
            raise NoSlot(f"no free slot for task {task.id}")
        kinds = [(slot.device, slot.gpu) for slot in fit]
        with self._lock:
            if self._closed:
                raise NoSlot("the engine is closed")
            if not any(seat.kind in kinds and seat.give(run) for seat in self._seats):
                self._seats.append(self._seat(kinds[0], run))

    def poll(self, timeout_s: float) -> list[Outcome]:
        """What has ended since the last call."""
        return drained(self._outcomes, timeout_s)

    def cancel(self, task_id: int) -> bool:
        """End a task, wherever it is. Its slot is free once its node is clean."""
        with self._lock:
            runs = [seat.run for seat in self._seats]
        return any(run.end() for run in runs if run is not None and run.task.id == task_id)

    def close(self, drain_s: float) -> None:
        """Wait for the running tasks, then end them, let all actors go, and leave the cluster."""
        with self._lock:
            self._closed = True
            seats = list(self._seats)
        deadline = time.monotonic() + drain_s
        for seat in seats:
            seat.retire()
        for seat in seats:
            seat.join(max(0.0, deadline - time.monotonic()))
        for seat in seats:
            run = seat.run
            if run is not None and run.end():
                failure = "the engine was closed before it was done"
                self._outcomes.put(Outcome(run.task.id, failure=failure))
        for seat in seats:
            seat.join()
        if self._owns and ray.is_initialized():
            ray.shutdown()

    def _seat(self, kind: Kind, run: Run) -> Seat:
        def gone(seat: Seat) -> None:
            with self._lock:
                self._seats.remove(seat)

        times = (self._placed_s, self._idle_s)
        return Seat(kind, self._sandbox, run, *times, self._outcomes.put, gone)


def _knock(address: str) -> None:
    """Raise `ConnectionError` at once when nobody is there; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConnectionError(f"there is no Ray cluster at {address}: {error}") from None


def _slots(
    nodes: list[tuple[dict[str, float], dict[str, float]]], used: Counter[Kind], idle: Counter[Kind]
) -> list[Slot]:
    """The slots of nodes that have these resources, and these of them unused by anyone.

    A slot is free when an actor of ours waits there. Of the others that we do not use, as many are
    as nodes of its kind have GPUs (or CPUs) unused.
    """
    unit = "GPU" if any("GPU" in has for has, _ in nodes) else "CPU"
    there: Counter[Kind] = Counter()
    left: Counter[Kind] = Counter()
    for has, unused in nodes:
        named = [name.removeprefix(TYPE) for name in has if name.startswith(TYPE)]
        kind: Kind = ("cuda", named[0] if named else UNKNOWN) if unit == "GPU" else ("cpu", None)
        there[kind] += int(has.get(unit, 0))
        left[kind] += int(unused.get(unit, 0))
    slots = []
    for kind, count in sorted(there.items(), key=str):
        fresh = max(0, min(count - used[kind] - idle[kind], left[kind]))
        free = min(count - used[kind], idle[kind]) + fresh
        device, gpu = kind
        slots += [Slot(f"{gpu or device}-{i}", device, gpu, i < free) for i in range(count)]
    return slots
