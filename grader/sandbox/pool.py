"""Runners started ahead of time, so that a grading need not wait for one.

A runner imports torch and makes its device's context as soon as it starts; a warm one has that
behind it. Each is handed out once and ended by whoever took it. Only then is the next one started,
in the background: a start beside a grading would disturb the times that are measured there.
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
    Ending,
    Runner,
    RunnerLimits,
    Sandbox,
    SandboxError,
    exit_on_signals,
)


class Pool(Sandbox):
    """A sandbox that keeps `size` runners of one kind waiting. A context manager.

    It goes by the name of the sandbox that it starts them in. Taking a runner and closing the pool
    are for one thread; the runners themselves may be stopped from any.
    """

    def __init__(
        self, sandbox: Sandbox, limits: RunnerLimits, device: Device, size: int = 1
    ) -> None:
        self.name = sandbox.name
        self._sandbox = sandbox
        self._limits = limits
        self._device = device
        self._lock = threading.Lock()
        self._lent: set[_Lent] = set()
        self._closed = False
        self._waiting: deque[Future[Runner]] = deque()
        self._starters = ThreadPoolExecutor(size, thread_name_prefix="grade-pool")
        exit_on_signals()
        atexit.register(self.close)
        for _ in range(size):
            self._start_next()

    def describe(self) -> str:
        """What the sandbox within says of itself."""
        return self._sandbox.describe()

    def start(self, limits: RunnerLimits, device: Device) -> Runner:
        """A warm runner; it waits for one that is being started. Other limits or another device
        than the pool's own, or no runner left alive, and it is a cold one.

        Raises `SandboxError` when the runner could not be started, be it in the background.
        """
        if self._closed:
            raise SandboxError("the pool of warm sandboxes is closed")
        runner = self._take() if (limits, device) == (self._limits, self._device) else None
        lent = _Lent(runner or self._sandbox.start(limits, device), self, runner is not None)
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
            waiting, self._waiting = self._waiting, deque()
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

    def _take(self) -> Runner | None:
        """The next waiting runner that is alive, if any; dead and failed ones are replaced."""
        for _ in range(len(self._waiting)):
            error = self._waiting[0].exception()  # waits for a start under way
            future = self._waiting.popleft()
            if error is None and future.result().poll() is None:
                return future.result()
            self._start_next()
            if error is not None:
                raise error
            future.result().stop()
        return None

    def _start_next(self) -> None:
        with self._lock:
            if not self._closed:
                start = self._sandbox.start
                self._waiting.append(self._starters.submit(start, self._limits, self._device))

    def _returned(self, lent: _Lent) -> None:
        """A handed-out runner has ended."""
        with self._lock:
            self._lent.discard(lent)
        if lent.warm:
            self._start_next()


class _Lent(Runner):
    """A runner that is handed out; the pool hears of its end."""

    def __init__(self, runner: Runner, pool: Pool, warm: bool) -> None:
        self.channel = runner.channel
        self.warm = warm
        self._runner = runner
        self._pool = pool
        self._once = threading.Lock()

    def poll(self) -> Ending | None:
        return self._runner.poll()

    def log(self) -> bytes:
        return self._runner.log()

    def stop(self) -> Ending:
        ending = self._runner.stop()
        if self._once.acquire(blocking=False):  # never given back: the first stop counts
            self._pool._returned(self)
        return ending
