"""The actor that grades on a node of a Ray cluster: a local engine with one slot.

It does not import Ray; `grader.fleet.ray_slot` turns it into an actor. A node needs only this
package and a sandbox, since the problem's files are sent with each task.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from grader.fleet.grading_engine import NoFreeSlot, Task, TaskOutcome
from grader.fleet.local_engine import START_TIMEOUT_S, LocalEngine
from grader.fleet.worker_process import WorkerMessage, WorkerReady
from grader.judge import Progress
from grader.judge.record import Device
from grader.sandbox.owner import make_owned_folder

SandboxName = Literal["docker", "process"]


class GradingActor:
    """Grades one task at a time on a node, and stays warm for the next."""

    def __init__(self, device: Device, sandbox: SandboxName) -> None:
        self._root = make_owned_folder()
        self._engine = LocalEngine(1, device, sandbox)

    def ping(self) -> None:
        """Return at once, which shows that the actor is alive."""

    def grade(
        self, fields: dict[str, Any], digest: str, files: Mapping[str, bytes]
    ) -> Iterator[bytes]:
        """Grade one task. Yields `WorkerMessage` lines, like a worker process.

        `fields` are those of the `Task`, with the problem's name as `folder`. `files` are the
        problem's files, and `digest` is their digest.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._has_free_slot() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield WorkerMessage(ready=WorkerReady(gpu=None)).line()
        task = Task(**fields | {"folder": self._unpack(fields["folder"], digest, files)})
        progress: SimpleQueue[Progress] = SimpleQueue()
        try:
            self._engine.submit(task, progress.put)
        except NoFreeSlot:
            failure = "no slot could be started on the node"
            yield WorkerMessage(task=task.id, failure=failure).line()
            return
        outcomes: list[TaskOutcome] = []
        while not outcomes:
            outcomes = self._engine.poll(0.2)
            while not progress.empty():
                yield WorkerMessage(task=task.id, progress=progress.get()).line()
        (outcome,) = outcomes
        yield WorkerMessage(task=task.id, report=outcome.report, failure=outcome.failure).line()

    def close(self) -> None:
        """End the running task, and remove everything from the node."""
        self._engine.close(0)
        shutil.rmtree(self._root, ignore_errors=True)

    def _has_free_slot(self) -> bool:
        return any(slot.free for slot in self._engine.slots())

    def _unpack(self, name: str, digest: str, files: Mapping[str, bytes]) -> Path:
        """Write the problem's folder for this version, kept until `close`."""
        version = self._root / digest
        version.mkdir(exist_ok=True)  # without parents, so nothing is written after `close`
        folder = version / name
        folder.mkdir(exist_ok=True)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        return folder
