"""Runners started ahead of time, so that a grading need not wait for one.

A runner imports torch and makes its device's context as soon as it starts; a warm one has that
behind it. Beside each waits a sandbox that compiles, which is small. Each is handed out once and
ended by whoever took it. When a runner is, and no sooner, the next ones are started, if there shall
be any, in the background: a start beside a grading would disturb the times that are measured there.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from grader.sandbox.base import (
    Device,
    RunnerExit,
    RunnerDevice,
    Runner,
    RunnerLimits,
    Sandbox,
    SandboxError,
    exit_on_signals,
)


class RunnerPool(Sandbox):
    """A sandbox that keeps `size` runners of one kind waiting, and as many that compile; without
    `refill` only such runners, until they are taken. A context manager.

    It goes by the name of the sandbox that it starts them in. Taking a runner and closing the pool
    are for one thread, and taking what compiles is for one at a time; they may be stopped from any.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        limits: RunnerLimits,
        device: Device,
        size: int = 1,
        refill: bool = True,
    ) -> None:
        self.name = sandbox.name
        self._sandbox = sandbox
        self._limits = limits
        self._device = device
        self._size = size
        self._lock = threading.Lock()
        self._lent: set[_Lent] = set()
        self._closed = False
        kinds: list[RunnerDevice] = [device, "none"] if refill else [device]
        self._waiting: dict[RunnerDevice, deque[Future[Runner]]] = {kind: deque() for kind in kinds}
        self._starters = ThreadPoolExecutor(2 * size, thread_name_prefix="grade-pool")
        self._refills = refill
        exit_on_signals()
        atexit.register(self.close)
        for _ in range(size):
            for kind in kinds:
                self._start_next(kind)

    def describe(self) -> str:
        """What the sandbox within says of itself."""
        return self._sandbox.describe()

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        """A warm one; it waits for one that is being started. Other limits or another device than
        the pool's own, or none left alive, and it is a cold one.

        Raises `SandboxError` when the runner could not be started, be it in the background.
        """
        if self._closed:
            raise SandboxError("the pool of warm sandboxes is closed")
        is_ours = limits == self._limits and device in self._waiting
        runner = self._take(device) if is_ours else None
        is_followed = runner is not None and device == self._device
        lent = _Lent(runner or self._sandbox.start(limits, device), self, is_followed)
        with self._lock:
            self._lent.add(lent)
        return lent

    def stop_lent(self) -> None:
        """End every runner that is handed out; whoever uses it sees it killed."""
        with self._lock:
            lent = list(self._lent)
        for runner in lent:
            runner.stop()

    def close(self) -> None:
        """End every runner, waiting or handed out, and wait for starts under way. Repeatable."""
        with self._lock:
            self._closed = True
            waiting = [future for each in self._waiting.values() for future in each]
            for each in self._waiting.values():
                each.clear()
        self.stop_lent()
        for future in waiting:
            if not future.cancel() and future.exception() is None:
                future.result().stop()
        self._starters.shutdown()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self, device: RunnerDevice) -> Runner | None:
        """The next waiting one that is alive, if any; dead and failed ones are replaced."""
        for _ in range(len(self._waiting[device])):
            with self._lock:
                if not self._waiting[device]:
                    break
                future = self._waiting[device].popleft()
            error = future.exception()  # waits for a start under way
            if self._closed and error is None:
                future.result().stop()
                raise SandboxError("the pool of warm sandboxes is closed")
            if error is None and future.result().poll() is None:
                return future.result()
            if self._refills:
                self._start_next(device)
            if error is not None:
                raise error
            future.result().stop()
        return None

    def _start_next(self, device: RunnerDevice) -> None:
        with self._lock:
            if not self._closed:
                start = self._sandbox.start
                self._waiting[device].append(self._starters.submit(start, self._limits, device))

    def _returned(self, lent: _Lent) -> None:
        """What was handed out has ended."""
        with self._lock:
            self._lent.discard(lent)
        if lent.is_followed and self._refills:
            self._start_next(self._device)
            if len(self._waiting["none"]) < self._size:
                self._start_next("none")


class _Lent(Runner):
    """A runner that is handed out; the pool hears of its end."""

    def __init__(self, runner: Runner, pool: RunnerPool, is_followed: bool) -> None:
        self.channel = runner.channel
        self.is_followed = is_followed
        """Whether its end is the time to start the next ones."""
        self._runner = runner
        self._pool = pool
        self._once = threading.Lock()

    def poll(self) -> RunnerExit | None:
        return self._runner.poll()

    def log(self) -> bytes:
        return self._runner.log()

    def stop(self) -> RunnerExit:
        ending = self._runner.stop()
        if self._once.acquire(blocking=False):  # never given back: the first stop counts
            self._pool._returned(self)
        return ending
