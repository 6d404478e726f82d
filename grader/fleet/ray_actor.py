"""What stands on a node of a Ray cluster for one slot: a local engine, kept for many gradings.

It knows nothing of Ray, which makes an actor of it (`grader.fleet.ray`). A node needs nothing but
this package and a sandbox; the problem's files are sent along.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from grader.fleet.engine import NoSlot, Outcome, Task
from grader.fleet.local import START_S, LocalEngine
from grader.fleet.worker_process import Ready, Word
from grader.judge import Progress
from grader.judge.record import Device
from grader.sandbox.owner import make_owned_folder

SandboxName = Literal["docker", "process"]


class NodeSlot:
    """One slot on a node: it grades one task at a time, and is warm for the next."""

    def __init__(self, device: Device, sandbox: SandboxName) -> None:
        self._root = make_owned_folder()
        self._engine = LocalEngine(1, device, sandbox)

    def pulse(self) -> None:
        """Answer: whoever hears it knows that this one lives."""

    def grade(
        self, told: dict[str, Any], digest: str, files: Mapping[str, bytes]
    ) -> Iterator[bytes]:
        """Grade one task, and say so as a slot does, in lines of `Word`.

        `told` are the fields of the task, with the problem's name in place of its folder; `digest`
        is of the problem that these files are.
        """
        deadline = time.monotonic() + START_S
        while not self._free() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield Word(ready=Ready(gpu=None)).line()
        task = Task(**told | {"folder": self._unpacked(told["folder"], digest, files)})
        said: SimpleQueue[Progress] = SimpleQueue()
        try:
            self._engine.submit(task, said.put)
        except NoSlot:
            yield Word(task=task.id, failure="no slot could be started on the node").line()
            return
        outcomes: list[Outcome] = []
        while not outcomes:
            outcomes = self._engine.poll(0.2)
            while not said.empty():
                yield Word(task=task.id, progress=said.get()).line()
        (outcome,) = outcomes
        yield Word(task=task.id, report=outcome.report, failure=outcome.failure).line()

    def close(self) -> None:
        """End what it does, and leave nothing on the node."""
        self._engine.close(0)
        shutil.rmtree(self._root, ignore_errors=True)

    def _free(self) -> bool:
        return any(slot.free for slot in self._engine.slots())

    def _unpacked(self, name: str, digest: str, files: Mapping[str, bytes]) -> Path:
        """The problem's folder here: one for each version, as long as this lives."""
        version = self._root / digest
        version.mkdir(exist_ok=True)  # and no parents: once closed, nothing is written any more
        folder = version / name
        folder.mkdir(exist_ok=True)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        return folder
