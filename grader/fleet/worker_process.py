"""One place of the local engine: a process that grades one task at a time, for as long as it lives.

``python -m grader.fleet.worker_process --device cpu|cuda[:N] --sandbox docker|process``

It reads an `Order` per line on stdin and answers with `Word`s, one per line, on stdout: `ready`
once, then for each order any number of `progress` and one `report` or `failure`. It has torch
imported and keeps a warm sandbox for the next submission to a problem with the same limits. SIGTERM
or the end of stdin ends it at once, with whatever it is doing; its sandboxes end with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from pydantic import BaseModel, ConfigDict, model_validator

from grader.fleet.job import MAX_SOURCE_BYTES
from grader.judge import Progress, grade
from grader.judge.record import Device
from grader.problem import Problem, ProblemError
from grader.report import Report, one_line
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits, Sandbox, SandboxError
from grader.submission import Language, Submission

if TYPE_CHECKING:
    from grader.sandbox.pool import RunnerPool

ORDER_BYTES = MAX_SOURCE_BYTES * 4 // 3 + (1 << 16)
"""The longest line that a slot reads: a source in base64, and a few words."""

END_S = 30.0
"""How long it may take to unwind before it ends without."""


class _Line(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="strings",
    )

    def line(self) -> bytes:
        """As one line of JSON, with its end."""
        return self.model_dump_json().encode() + b"\n"


class Order(_Line):
    """A task, told to a slot."""

    task: int
    folder: Path
    digest: str
    name: str
    language: Language
    source: bytes


class Ready(_Line):
    """What a slot has, told once it can work."""

    gpu: str | None


class Word(_Line):
    """What a slot says: that it is ready, or one thing about its task."""

    task: int | None = None
    ready: Ready | None = None
    progress: Progress | None = None
    report: Report | None = None
    failure: str | None = None

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        said = (self.ready, self.progress, self.report, self.failure)
        if sum(thing is not None for thing in said) != 1:
            raise ValueError("a slot says one thing at a time")
        return self


Tell = Callable[[Word], None]


class Bench:
    """Grades orders, one after the other, with a sandbox kept warm for the next."""

    def __init__(self, sandbox: Sandbox, device: Device, tell: Tell) -> None:
        self._sandbox = sandbox
        self._device = device
        self._tell = tell
        self._limits: RunnerLimits | None = None
        self._pool: RunnerPool | None = None

    def serve(self, order: Order) -> None:
        """Grade one order and tell how it went."""
        try:
            report = self._grade(order)
        except (ProblemError, SandboxError) as error:
            self._tell(Word(task=order.task, failure=one_line(str(error))))
        else:
            self._tell(Word(task=order.task, report=report))

    def close(self) -> None:
        """End the warm sandbox."""
        if self._pool is not None:
            self._pool.close()

    def _grade(self, order: Order) -> Report:
        problem = Problem.load(order.folder)
        if problem.digest != order.digest:
            raise ProblemError(
                f"{order.folder}: the problem has changed since this was handed in"
                f" (digest {problem.digest[:12]}, not {order.digest[:12]})"
            )
        return grade(
            problem,
            Submission(order.name, order.language, order.source),
            sandbox=self._warm(RunnerLimits.of(problem.spec.limits)),
            device=self._device,
            progress=lambda step: self._tell(Word(task=order.task, progress=step)),
        )

    def _warm(self, limits: RunnerLimits) -> RunnerPool:
        """The pool for these limits; that of others is closed."""
        from grader.sandbox.pool import RunnerPool

        if self._pool is None or limits != self._limits:
            self.close()
            self._pool = RunnerPool(self._sandbox, limits, self._device)
            self._limits = limits
        return self._pool


def main() -> None:
    """Serve orders until told to end."""
    stdin, stdout = _own_streams()
    signal.signal(signal.SIGTERM, _end)
    options = _options()
    kind, _, index = options.device.partition(":")
    device = cast(Device, kind)
    if index:  # before anything asks the driver
        os.environ["CUDA_VISIBLE_DEVICES"] = index
    orders: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(stdin, orders), daemon=True).start()

    def tell(word: Word) -> None:
        try:
            stdout.write(word.line())
        except BrokenPipeError:
            raise SystemExit(1) from None  # nobody listens any more

    bench = Bench(make_sandbox(options.sandbox), device, tell)
    try:
        tell(Word(ready=Ready(gpu=_gpu(device))))
        while True:
            bench.serve(Order.model_validate_json(_next(orders)))
    finally:
        bench.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="grader.fleet.worker_process")
    parser.add_argument("--device", required=True, metavar="cpu|cuda[:N]")
    parser.add_argument("--sandbox", required=True, choices=["docker", "process"])
    options = parser.parse_args()
    if options.device.partition(":")[0] not in ("cpu", "cuda"):
        parser.error(f"--device: '{options.device}' is not cpu, cuda or cuda:N")
    return options


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    """Take stdin and stdout for ourselves: what a library prints goes to stderr, and what a child
    process would read is empty."""
    stdin = os.fdopen(os.dup(0), "rb")
    stdout = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return stdin, stdout


def _read(stdin: BinaryIO, orders: SimpleQueue[bytes]) -> None:
    """In a thread, so that the end of stdin is seen in the middle of a grading."""
    while (line := stdin.readline(ORDER_BYTES)).endswith(b"\n"):
        orders.put(line)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_S)
    os._exit(1)


def _next(orders: SimpleQueue[bytes]) -> bytes:
    """The next order, waited for. Again and again: a signal that comes just before a wait would be
    heard only when that ends."""
    while True:
        with suppress(Empty):
            return orders.get(timeout=1)


def _end(number: int, _frame: FrameType | None) -> None:
    """Unwind, once: a second signal shall not interrupt the unwinding."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _gpu(device: Device) -> str | None:
    """Import what a grading needs; the name of our GPU, null on a CPU."""
    import grader.judge.benchmark
    import grader.judge.grading  # noqa: F401
    from grader.judge.gpu.environment import gpu_name

    try:
        return gpu_name(device)
    except (RuntimeError, AssertionError) as error:  # what torch raises without a driver or a GPU
        sys.exit(f"no GPU can be used here: {one_line(str(error))}")


if __name__ == "__main__":
    main()
