"""The engine for a Ray cluster: each grading is one Ray task, placed where there is room.

The placed task is a slot for as long as it lives: it grades with a local engine on its node, and
streams back what that says. A node needs nothing but this package and a sandbox; the problem's
files are sent along. Ray retries nothing: a task that is lost with its node is a failure, and it is
for the ledger to give it another try.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Literal

import ray
from ray.exceptions import RayError

from grader.fleet.engine import Engine, NoSlot, OnProgress, Outcome, Slot, Task
from grader.fleet.local import START_S, LocalEngine
from grader.fleet.slot import SOURCE_BYTES, Ready, Word
from grader.judge import Progress
from grader.judge.record import Device
from grader.problem import Problem, ProblemError
from grader.problem.load import FILES
from grader.report import one_line

log = logging.getLogger(__name__)

PLACED_S = 600.0
"""How long a task may wait for its place and its slot; others may use the cluster too."""

GRACE_S = 30.0
"""How long a cancelled task may take to clean up on its node before it is killed."""

RETRY_S = 10.0
"""How long a cluster that did not answer is left alone."""

TYPE = "accelerator_type:"
"""What stands before a GPU's type in the resources of a node."""

UNKNOWN = "GPU"
"""The type of GPUs that Ray cannot name."""

SandboxName = Literal["docker", "process"]
Kind = tuple[Device, str | None]
"""A device, and the GPU's type as Ray names it."""


class RayEngine(Engine):
    """Slots on a Ray cluster that is there: one per GPU, or one per CPU where no node has a GPU.

    A slot's GPU is named by Ray's type, such as ``H100``. Raises `ConnectionError` when there is no
    cluster at `address`.
    """

    def __init__(
        self,
        sandbox: SandboxName,
        address: str = "auto",
        *,
        placed_s: float = PLACED_S,
    ) -> None:
        self._sandbox = sandbox
        self._placed_s = placed_s
        self._owns = not ray.is_initialized()
        if self._owns:
            _knock(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._lock = threading.Lock()
        self._runs: dict[int, _Run] = {}
        """By the task's number, until nothing of it is left on its node. The lock guards it."""
        self._closed = False
        self._away_until = 0.0

    def slots(self) -> list[Slot]:
        """The cluster's slots as it tells of them; none while it does not answer."""
        if self._closed or time.monotonic() < self._away_until:
            return []
        try:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            unused = ray.available_resources()  # type: ignore[no-untyped-call]
        except (RayError, RuntimeError, OSError) as error:
            log.warning("the Ray cluster does not answer: %s", one_line(str(error)))
            self._away_until = time.monotonic() + RETRY_S
            return []
        with self._lock:
            used = Counter(run.kind for run in self._runs.values())
        return _slots(nodes, unused, used)

    def submit(self, task: Task, on_progress: OnProgress | None = None) -> None:
        """Ask Ray to place a task. A problem that cannot be loaded is a failure, told by `poll`.

        Raises `NoSlot` when no slot that serves it is free, and ValueError for a source of more
        than `SOURCE_BYTES` bytes.
        """
        if len(task.source) > SOURCE_BYTES:
            raise ValueError(f"a slot takes at most {SOURCE_BYTES:,} bytes of source")
        try:
            files = _files(task.folder)
        except (ProblemError, OSError) as error:
            self._outcomes.put(Outcome(task.id, failure=one_line(str(error))))
            return
        fit = [slot for slot in self.slots() if slot.free and slot.serves(task.device, task.gpu)]
        if not fit:
            raise NoSlot(f"no free slot for task {task.id}")
        run = _Run(task, (fit[0].device, fit[0].gpu), on_progress)
        with self._lock:
            if self._closed:
                raise NoSlot("the engine is closed")
            self._runs[task.id] = run
            run.start(files, self._sandbox, self._placed_s, self._ended)

    def poll(self, timeout_s: float) -> list[Outcome]:
        """What has ended since the last call."""
        found: list[Outcome] = []
        with suppress(Empty):
            found.append(self._outcomes.get(timeout=max(0.0, timeout_s)))
            while True:
                found.append(self._outcomes.get_nowait())
        return found

    def cancel(self, task_id: int) -> bool:
        """End a task, wherever it is. Its slot is free once its node is clean."""
        with self._lock:
            run = self._runs.get(task_id)
        return run is not None and run.end()

    def close(self, drain_s: float) -> None:
        """Wait for the running tasks, then end them, and leave the cluster."""
        with self._lock:
            self._closed = True
            runs = list(self._runs.values())
        deadline = time.monotonic() + drain_s
        for run in runs:
            run.join(max(0.0, deadline - time.monotonic()))
        for run in runs:
            if run.end():
                failure = "the engine was closed before it was done"
                self._outcomes.put(Outcome(run.task.id, failure=failure))
        for run in runs:
            run.join()
        if self._owns and ray.is_initialized():
            ray.shutdown()

    def _ended(self, run: _Run, outcome: Outcome | None) -> None:
        """From a run's thread, its last word: nothing of it is left."""
        with self._lock:
            del self._runs[run.task.id]
        if outcome is not None:
            self._outcomes.put(outcome)


class _Run:
    """One task on the cluster, and the thread that listens to it."""

    def __init__(self, task: Task, kind: Kind, on_progress: OnProgress | None) -> None:
        self.task = task
        self.kind = kind
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._over = False
        """Whether somebody has the right to its outcome already: whoever sets this first."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(
        self,
        files: dict[str, bytes],
        sandbox: SandboxName,
        placed_s: float,
        ended: Callable[[_Run, Outcome | None], None],
    ) -> None:
        """Begin. `ended` is called from its thread when it is over, with the outcome unless it was
        cancelled."""

        def listen() -> None:
            outcome = None
            try:
                outcome = self._listen(_place(self.task, self.kind, files, sandbox), placed_s)
            except Exception as error:  # whatever Ray raises, the task shall have its outcome
                known = isinstance(error, RayError)
                log.warning("task %d on Ray: %s", self.task.id, error, exc_info=not known)
                why = one_line(f"lost on the cluster: {type(error).__name__}: {error}")
                outcome = Outcome(self.task.id, failure=why)
            finally:
                ended(self, outcome if self._is_first() else None)

        self._thread = threading.Thread(
            target=listen, name=f"grade-ray-{self.task.id}", daemon=True
        )
        self._thread.start()

    def end(self) -> bool:
        """Cancel it; False when its outcome has come or will."""
        first = self._is_first()
        if first:
            self._ending.set()
        return first

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until nothing of it is left."""
        assert self._thread is not None
        self._thread.join(timeout_s)

    def _is_first(self) -> bool:
        with self._lock:
            first, self._over = not self._over, True
            return first

    def _listen(self, stream: Any, placed_s: float) -> Outcome | None:
        """Hear it to its end. Raises what Ray raises when it is lost."""
        deadline = time.monotonic() + placed_s
        while True:
            ready, _ = ray.wait([stream], timeout=0.2, fetch_local=False)
            if self._ending.is_set():
                _clear(stream)
                return None
            if not ready:
                if time.monotonic() >= deadline:
                    _clear(stream)
                    return Outcome(self.task.id, failure=f"not placed within {placed_s:g} s")
                continue
            try:
                line = ray.get(next(stream), timeout=GRACE_S)
            except StopIteration:
                return Outcome(self.task.id, failure="the task ended without a word")
            word = Word.model_validate_json(line)
            if word.report is not None or word.failure is not None:
                return Outcome(self.task.id, word.report, word.failure)
            deadline = float("inf")  # it is placed, and there its engine watches the time
            if word.progress is not None and self._on_progress is not None:
                try:
                    self._on_progress(word.progress)
                except Exception:
                    log.exception("whoever watches task %d raised", self.task.id)


def _place(task: Task, kind: Kind, files: dict[str, bytes], sandbox: SandboxName) -> Any:
    """Hand a task to Ray; the stream of what it says."""
    device, gpu = kind
    options: dict[str, Any] = {"num_gpus": 1} if device == "cuda" else {}
    if gpu not in (None, UNKNOWN):
        options["accelerator_type"] = gpu
    told = dataclasses.asdict(task) | {"folder": task.folder.name, "device": device, "gpu": None}
    return _grading.options(**options).remote(told, files, sandbox)


def _clear(stream: Any) -> None:
    """Cancel a task and wait until its node is clean; kill it if that takes too long."""
    for force, patience_s in ((False, GRACE_S), (True, GRACE_S)):
        ray.cancel(stream, force=force)
        deadline = time.monotonic() + patience_s
        with suppress(RayError, StopIteration):
            while time.monotonic() < deadline:
                if ray.wait([stream], timeout=0.2, fetch_local=False)[0]:
                    ray.get(next(stream), timeout=patience_s)
            continue
        return


def _grade(told: dict[str, Any], files: dict[str, bytes], sandbox: SandboxName) -> Iterator[bytes]:
    """On a node: grade one task, and say so as a slot does, in lines of `Word`."""
    number = told["id"]
    said: SimpleQueue[Progress] = SimpleQueue()
    with TemporaryDirectory(prefix="grade-problem-") as root:
        folder = Path(root, told["folder"])
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        with LocalEngine(1, told["device"], sandbox) as engine:
            deadline = time.monotonic() + START_S
            while not engine.slots()[0].free and time.monotonic() < deadline:
                time.sleep(0.05)
            yield Word(ready=Ready(gpu=engine.slots()[0].gpu)).line()
            try:
                engine.submit(Task(**told | {"folder": folder}), said.put)
            except NoSlot:
                yield Word(task=number, failure="no slot could be started on the node").line()
                return
            outcomes: list[Outcome] = []
            while not outcomes:
                outcomes = engine.poll(0.2)
                while not said.empty():
                    yield Word(task=number, progress=said.get()).line()
        (outcome,) = outcomes
    yield Word(task=number, report=outcome.report, failure=outcome.failure).line()


_grading = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(_grade)


def _files(folder: Path) -> dict[str, bytes]:
    """The files of a problem that is sound."""
    Problem.load(folder)
    return {name: (folder / name).read_bytes() for name in FILES}


def _knock(address: str) -> None:
    """Raise `ConnectionError` at once when nobody is there; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"there is no Ray cluster at {address}: {error}") from None


def _slots(
    nodes: list[dict[str, float]], unused: dict[str, float], used: Counter[Kind]
) -> list[Slot]:
    """The slots of nodes with these resources.

    A slot is free when we do not use it; of those, only as many as the cluster has GPUs (or CPUs)
    unused by anyone: Ray does not tell by type what others use.
    """
    there: Counter[Kind] = Counter()
    for node in nodes:
        named = [name.removeprefix(TYPE) for name in node if name.startswith(TYPE)]
        there["cuda", named[0] if named else UNKNOWN] += int(node.get("GPU", 0))
    there += Counter()  # only those that are not 0
    if not there:
        there["cpu", None] = sum(int(node.get("CPU", 0)) for node in nodes)
    left = int(unused.get("CPU" if ("cpu", None) in there else "GPU", 0))
    slots = []
    for kind, count in sorted(there.items(), key=str):
        free = max(0, min(count - used[kind], left))
        left -= free
        device, gpu = kind
        slots += [Slot(f"{gpu or device}-{i}", device, gpu, i < free) for i in range(count)]
    return slots
