"""Runners started in advance, so that a grading need not wait for one.

A warm runner has imported torch and loaded Triton's compiler. Beside them wait small sandboxes that
only compile. Each is handed out once and stopped by its user. Only then does the pool start the
next ones, in the background: a start during a grading would disturb the times measured there.
Those that compile are also replaced while no runner is in use.

A large pool replaces a runner at once only while few wait. The others it starts while none is in
use, since gradings that come one after another need the processors. Starts go on during the next
gradings; but runners open their GPU only while none is handed out, since opening one makes others
wait in the driver.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
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
from grader.wire import WireError, send_request

LARGE = 6
"""The size from which on a pool does not replace every runner at once."""
FEW = 4
"""Runners that a large pool keeps waiting at any time, and compilers that every pool does."""
IDLE_S = 8.0
"""How often a large pool starts one of the others, if none is in use: those of a batch's turn while
its timings go on, and no sooner, since starts keep processors busy."""
OPEN = 2
"""Of the runners that wait, those that open their GPU: the next one, so that no grading waits for
it, and the one behind it, while the next grading begins."""


class RunnerPool(Sandbox):
    """A sandbox that keeps `size` runners waiting, and a few that only compile.

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
        self._few: dict[RunnerDevice, int] = {
            device: FEW if size >= LARGE else size,
            "none": min(size, FEW),
        }
        self._lock = threading.RLock()
        self._lent: set[_LentRunner] = set()
        self._in_use = 0
        """Runners on the device that are handed out or about to be."""
        self._closed = False
        kinds: list[RunnerDevice] = [device, "none"] if refill else [device]
        self._waiting: dict[RunnerDevice, deque[Future[Runner]]] = {kind: deque() for kind in kinds}
        self._starters = ThreadPoolExecutor(2 * min(size, LARGE), thread_name_prefix="grade-pool")
        self._refills = refill
        self._timer: threading.Timer | None = None
        exit_on_signals()
        atexit.register(self.close)
        for kind in kinds:
            self._fill(kind)

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
        fits = limits == self._limits and device in self._waiting
        is_main = fits and device == self._device
        with self._lock:
            self._in_use += is_main
        try:
            runner = self._take(device) if fits else None
            started = runner or self._sandbox.start(limits, device)
        except BaseException:
            with self._lock:
                self._in_use -= is_main
            raise
        lent = _LentRunner(started, self, is_main, is_warm=runner is not None)
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
            if self._timer is not None:
                self._timer.cancel()
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
                self._start_next(device)
            if error is not None:
                raise error
            future.result().stop()
        return None

    def _fill(self, device: RunnerDevice) -> None:
        """Start what is missing of the few, and in a while one of the others."""
        with self._lock:
            waiting = self._waiting[device]
            while not self._closed and len(waiting) < self._few[device]:
                self._start_next(device)
            is_left = device != "none" and len(waiting) < self._size
            if is_left and self._timer is None and not self._closed:
                self._timer = threading.Timer(IDLE_S, self._on_timer)
                self._timer.daemon = True
                self._timer.start()

    def _on_timer(self) -> None:
        with self._lock:
            self._timer = None
            if not self._in_use:
                self._start_next(self._device)
            self._fill(self._device)

    def _start_next(self, device: RunnerDevice) -> None:
        with self._lock:
            if not self._closed:
                started = self._starters.submit(self._sandbox.start, self._limits, device)
                self._waiting[device].append(started)
                started.add_done_callback(lambda _: self._open_next())

    def _open_next(self) -> None:
        """Have the next runners open their GPU, unless one is in use."""
        with self._lock:
            if self._device == "cpu" or self._in_use:
                return
            for following in islice(self._waiting[self._device], OPEN):
                if following.done() and not following.cancelled() and not following.exception():
                    with suppress(WireError, OSError):  # it has ended, which its user will see
                        send_request(following.result().channel, {"kind": "open_device"})

    def _on_stopping(self, lent: _LentRunner) -> None:
        """Nothing is measured any more: the next runners open their GPU while this one ends."""
        with self._lock:
            self._in_use -= lent.is_main
        self._open_next()

    def _on_stop(self, lent: _LentRunner) -> None:
        """Start the next runners once a warm one has been stopped."""
        with self._lock:
            self._lent.discard(lent)
            is_used = self._in_use > 0
        if not lent.is_warm or not self._refills:
            return
        if lent.is_main:
            self._fill(self._device)
        if lent.is_main or not is_used:
            self._fill("none")


class _LentRunner(Runner):
    """A runner that is handed out and notifies the pool when it is stopped."""

    def __init__(self, runner: Runner, pool: RunnerPool, is_main: bool, is_warm: bool) -> None:
        self.channel = runner.channel
        self.is_main = is_main
        """Whether it counts as in use."""
        self.is_warm = is_warm
        """Whether it was taken from those that wait."""
        self._runner = runner
        self._pool = pool
        self._once = threading.Lock()

    def poll(self) -> RunnerExit | None:
        return self._runner.poll()

    def log(self) -> bytes:
        return self._runner.log()

    def stop(self) -> RunnerExit:
        is_first = self._once.acquire(blocking=False)  # never released: only the first stop counts
        if is_first:
            self._pool._on_stopping(self)
        final = self._runner.stop()
        if is_first:
            self._pool._on_stop(self)
        return final
