"""A slot of ours on a Ray cluster: an actor that is placed once, and kept for the next task.

A seat is kept by one thread, which has an actor placed, hands it a task, hears what it says, and
lets it go: when it waited for too long, since others may use the cluster, or when its last grading
failed, since who knows what is wrong with it.
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

from grader.fleet.engine import OnProgress, Outcome, Task
from grader.fleet.local import MARGIN_S
from grader.fleet.ray_actor import NodeSlot, SandboxName
from grader.fleet.worker_process import Word
from grader.judge.record import Device
from grader.problem import Problem
from grader.problem.load import FILES
from grader.report import one_line

log = logging.getLogger(__name__)

PULSE_S = 5.0
"""How often an actor that waits is asked whether it lives."""

ANSWER_S = 10.0
"""How long it may take to answer that."""

GRACE_S = 30.0
"""How long an actor may take to clean up on its node before it is killed."""

UNKNOWN = "GPU"
"""The type of GPUs that Ray cannot name."""

Kind = tuple[Device, str | None]
"""A device, and the GPU's type as Ray names it."""


@dataclass(eq=False)
class Run:
    """One task with all that its node must know."""

    task: Task
    digest: str
    files: dict[str, bytes]
    limit_s: float
    """Time from its start on the node until nobody there can be at it any more."""
    on_progress: OnProgress | None
    ending: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: bool = False

    @classmethod
    def of(cls, task: Task, on_progress: OnProgress | None) -> Run:
        """Raises `ProblemError` or OSError for a problem that is not sound."""
        problem = Problem.load(task.folder)
        files = {name: (task.folder / name).read_bytes() for name in FILES}
        # The engine on its node ends it long before.
        limit_s = problem.spec.limits.total_s + MARGIN_S + GRACE_S
        return cls(task, problem.digest, files, limit_s, on_progress)

    def is_first(self) -> bool:
        """Whether nobody has the right to its outcome yet: whoever asks first has."""
        with self._lock:
            first, self._over = not self._over, True
            return first

    def end(self) -> bool:
        """Cancel it; False when its outcome has come or will."""
        first = self.is_first()
        if first:
            self.ending.set()
        return first


class Seat:
    """A slot of ours on the cluster: an actor, and the thread that speaks to it."""

    def __init__(
        self,
        kind: Kind,
        sandbox: SandboxName,
        run: Run,
        placed_s: float,
        idle_s: float,
        tell: Callable[[Outcome], None],
        gone: Callable[[Seat], None],
    ) -> None:
        """Begin with this run. `gone` is called from its thread when nothing of it is left."""
        self.kind = kind
        self._sandbox: SandboxName = sandbox
        self._placed_s, self._idle_s = placed_s, idle_s
        self._tell, self._gone = tell, gone
        self._changed = threading.Condition()
        # The condition guards these two.
        self._run: Run | None = run
        self._retired = False
        self._actor: _Actor | None = None
        """Only the thread touches it."""
        self._thread = threading.Thread(
            target=self._keep, name=f"grade-ray-{run.task.id}", daemon=True
        )
        self._thread.start()

    @property
    def run(self) -> Run | None:
        """What it is at; it still is while its node is cleaned."""
        with self._changed:
            return self._run

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a run."""
        with self._changed:
            return self._run is None and not self._retired

    def give(self, run: Run) -> bool:
        """Take this run, if it waits for one."""
        with self._changed:
            if self._run is not None or self._retired:
                return False
            self._run = run
            self._changed.notify()
            return True

    def retire(self) -> None:
        """Take no more runs, and leave after the one under way."""
        with self._changed:
            self._retired = True
            self._changed.notify()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until nothing of it is left."""
        self._thread.join(timeout_s)

    def _keep(self) -> None:
        while (run := self._next()) is not None:
            outcome = self._grade(run)
            if outcome is None or outcome.is_ours:  # who knows what is wrong with its actor
                self.retire()
                self._let_go()
            with self._changed:
                self._run = None
            if outcome is not None and run.is_first():
                self._tell(outcome)
        self._let_go()
        self._gone(self)

    def _next(self) -> Run | None:
        """The next run, waited for; None when it is time to leave."""
        leave_at = time.monotonic() + self._idle_s
        while True:
            with self._changed:
                if self._run is None and not self._retired:
                    self._changed.wait(min(PULSE_S, max(0.0, leave_at - time.monotonic())))
                if self._run is None and time.monotonic() >= leave_at:
                    self._retired = True
                if self._run is not None or self._retired:
                    return self._run
            if self._actor is not None and not self._actor.lives():
                self._let_go()
                leave_at = 0.0  # unless it was given a run just now, for which there is another

    def _let_go(self) -> None:
        actor, self._actor = self._actor, None
        if actor is None:
            return
        try:
            actor.end()
        except Exception:  # its task shall have its outcome
            log.exception("something of an actor may be left on its node")

    def _grade(self, run: Run) -> Outcome | None:
        """See a run to its end, whatever Ray raises; None when it was cancelled."""
        try:
            if self._actor is not None and not self._actor.lives():
                self._let_go()
            self._actor = self._actor or _Actor(self.kind, self._sandbox)
            return self._listen(run, self._actor.grade(run))
        except Exception as error:
            known = isinstance(error, RayError)
            log.warning("task %d on Ray: %s", run.task.id, error, exc_info=not known)
            why = f"lost on the cluster: {type(error).__name__}: {error}"
            return Outcome(run.task.id, failure=one_line(why))

    def _listen(self, run: Run, stream: Any) -> Outcome | None:
        """Hear it to its end. Raises what Ray raises when it is lost."""
        number = run.task.id
        deadline = time.monotonic() + self._placed_s
        late = f"not placed within {self._placed_s:g} s"
        while True:
            ready, _ = ray.wait([stream], timeout=0.2, fetch_local=False)
            if run.ending.is_set():
                return None
            if not ready:
                if time.monotonic() >= deadline:
                    return Outcome(number, failure=late)
                continue
            try:
                line = ray.get(next(stream), timeout=GRACE_S)
            except StopIteration:
                return Outcome(number, failure="the task ended without a word")
            word = Word.model_validate_json(line)
            if word.report is not None or word.failure is not None:
                return Outcome(number, word.report, word.failure)
            if word.ready is not None:
                deadline = time.monotonic() + run.limit_s
                late = f"its node did not answer within {run.limit_s:g} s"
            elif word.progress is not None and run.on_progress is not None:
                try:
                    run.on_progress(word.progress)
                except Exception:
                    log.exception("whoever watches task %d raised", number)


_NodeSlot: Any = ray.remote(NodeSlot)


class _Actor:
    """A `NodeSlot` on a node, once Ray has found one; never restarted."""

    def __init__(self, kind: Kind, sandbox: SandboxName) -> None:
        device, gpu = kind
        place: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(device == "cuda")}
        if gpu not in (None, UNKNOWN):
            place["accelerator_type"] = gpu
        self._device = device
        self._handle = _NodeSlot.options(
            **place,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,  # one thread grades, the other answers and ends it
        ).remote(device, sandbox)
        self._born = self._handle.pulse.remote()

    def grade(self, run: Run) -> Any:
        """Hand it a task; the stream of what it says."""
        task = run.task
        told = dataclasses.asdict(task) | {
            "folder": task.folder.name,
            "device": self._device,
            "gpu": None,
        }
        method = self._handle.grade.options(num_returns="streaming")
        return method.remote(told, run.digest, run.files)

    def lives(self) -> bool:
        """Whether it answers."""
        try:
            ray.get(self._handle.pulse.remote(), timeout=ANSWER_S)
        except Exception as error:
            known = isinstance(error, RayError)
            log.warning("an actor that waited is gone: %s", error, exc_info=not known)
            return False
        return True

    def end(self) -> None:
        """Have it clean its node, and end it; the second alone where it has no node, or takes too
        long."""
        with suppress(RayError):
            if ray.wait([self._born], timeout=0)[0]:
                ray.get(self._handle.close.remote(), timeout=GRACE_S)
        with suppress(RayError):
            ray.kill(self._handle)
