"""Runners started in advance, so that a grading need not wait for one.

A runner imports torch and creates its device context at the start; a warm one has done so. For each
the pool also keeps a small sandbox that only compiles. Each is handed out once and stopped by its
user. Only then does the pool start the next ones, in the background: a start during a grading would
disturb the times measured there.

A start takes seconds of several processors. So while gradings follow each other, a large pool keeps
about half of its size ready, and starts the rest one by one when it has been idle for a while.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from grader.sandbox.base import (
    Device,
    Runner,
    RunnerDevice,
    RunnerExit,
    RunnerLimits,
    Sandbox,
    SandboxError,
    exit_on_signals,
)

IDLE_S = 1.0
"""A pool is idle when nobody has had a runner for this long."""


class RunnerPool(Sandbox):
    """A sandbox that keeps `size` runners waiting, and as many that only compile.

    With `refill` false it has no compilers, and a runner taken is not replaced. The pool has the
    name of the sandbox that it starts runners in. A context manager.

    Only one thread may take runners and close the pool, and only one at a time take compilers. Any
    thread may stop them.
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
        self._least = min(size, max(2, (size + 1) // 2))
        """How many wait, or are being started, while gradings follow each other."""
        self._lock = threading.Lock()
        self._lent: set[_LentRunner] = set()
        self._closed = False
        kinds: list[RunnerDevice] = [device, "none"] if refill else [device]
        self._waiting: dict[RunnerDevice, deque[Future[Runner]]] = {kind: deque() for kind in kinds}
        self._starters = ThreadPoolExecutor(2 * size, thread_name_prefix="grade-pool")
        self._idle_starter = ThreadPoolExecutor(1, thread_name_prefix="grade-pool-idle")
        self._idle_timer: threading.Timer | None = None
        self._refills = refill
        exit_on_signals()
        atexit.register(self.close)
        self._start_missing(size, self._starters)

    def describe(self) -> str:
        """The description of the inner sandbox."""
        return self._sandbox.describe()

    def start(self, limits: RunnerLimits, device: RunnerDevice) -> Runner:
        """A warm runner, once its start has finished.

        A cold one if none is waiting alive, or if the limits or the device differ from the pool's.
        Raises `SandboxError` when the runner, or the background start it waited for, failed.
        """
        if self._closed:
            raise SandboxError("the pool of warm sandboxes is closed")
        self._expect_idle(False)
        fits = limits == self._limits and device in self._waiting
        runner = self._take(device) if fits else None
        refills = runner is not None and device == self._device
        lent = _LentRunner(runner or self._sandbox.start(limits, device), self, refills)
        with self._lock:
            self._lent.add(lent)
        return lent

    def stop_lent(self) -> None:
        """Stop every runner that is handed out; its user sees it as stopped."""
        with self._lock:
            lent = list(self._lent)
        for runner in lent:
            runner.stop()

    def close(self) -> None:
        """Stop every runner, waiting or handed out, and await pending starts. Idempotent."""
        with self._lock:
            self._closed = True
            waiting = [future for each in self._waiting.values() for future in each]
            for each in self._waiting.values():
                each.clear()
        self.stop_lent()
        self._expect_idle(False)
        for future in waiting:
            if not future.cancel() and future.exception() is None:
                future.result().stop()
        self._starters.shutdown()
        self._idle_starter.shutdown()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, device: RunnerDevice) -> Runner | None:
        """The next waiting runner that is alive, if any; dead ones are replaced."""
        for _ in range(len(self._waiting[device])):
            with self._lock:
                if not self._waiting[device]:
                    break
                future = self._waiting[device].popleft()
            error = future.exception()  # waits for a pending start
            if self._closed and error is None:
                future.result().stop()
                raise SandboxError("the pool of warm sandboxes is closed")
            if error is None and future.result().poll() is None:
                return future.result()
            if self._refills:
                self._start_missing(self._least, self._starters)
            if error is not None:
                raise error
            future.result().stop()
        return None

    def _start_missing(self, count: int, starters: ThreadPoolExecutor) -> None:
        """Start runners and compilers until `count` of each wait or are being started."""
        with self._lock:
            while not self._closed:
                short = [kind for kind, each in self._waiting.items() if len(each) < count]
                if not short:
                    return
                for kind in short:
                    start = starters.submit(self._sandbox.start, self._limits, kind)
                    self._waiting[kind].append(start)

    def _on_stop(self, lent: _LentRunner) -> None:
        """Start the next runners once a warm one has been stopped."""
        with self._lock:
            self._lent.discard(lent)
        if lent.refills and self._refills:
            self._start_missing(self._least, self._starters)
        self._expect_idle(True)

    def _expect_idle(self, soon: bool) -> None:
        """Fill the pool up when it has been idle for a while; or not, as it is used now."""
        with self._lock:
            timer, self._idle_timer = self._idle_timer, None
            is_short = any(len(each) < self._size for each in self._waiting.values())
            if soon and is_short and self._refills and not self._lent and not self._closed:
                fill = self._start_missing, (self._size, self._idle_starter)
                self._idle_timer = threading.Timer(IDLE_S, *fill)
                self._idle_timer.name = "grade-pool-timer"
                self._idle_timer.daemon = True
                self._idle_timer.start()
        if timer is not None:
            timer.cancel()
            timer.join()


class _LentRunner(Runner):
    """A runner that is handed out and notifies the pool when it is stopped."""

    def __init__(self, runner: Runner, pool: RunnerPool, refills: bool) -> None:
        self.channel = runner.channel
        self.refills = refills
        """Whether stopping it starts the next ones."""
        self._runner = runner
        self._pool = pool
        self._once = threading.Lock()

    def poll(self) -> RunnerExit | None:
        return self._runner.poll()

    def log(self) -> bytes:
        return self._runner.log()

    def stop(self) -> RunnerExit:
        final = self._runner.stop()
        if self._once.acquire(blocking=False):  # never released: only the first stop counts
            self._pool._on_stop(self)
        return final
