"""Compile a Triton submission's kernels for all cases at once, in processes beside the runner.

Triton compiles on a kernel's first call with new types and block sizes, a few tenths of a second
each time, one after the other. Here some processes, forked before the device was touched, call the
entry on tensors of each case's shape, while the tests begin; kernels are compiled and not launched,
and land in Triton's cache on disk, where the runner finds them. Those tensors have no memory, so
that nobody needs a context on the device: eight of them take it half a second to make and to clear
away. Only an entry that fails so is called on zeros. Each process takes the next case from one
queue and reports which it has begun, so that the runner can wait for what is half compiled instead
of beginning anew. They prove nothing.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grader.arena.layout import TensorSpec, tensor_like, unpack
from grader.runner.load import EntryPoint, load_python

MOST = 8
"""Each of them takes some 100 MB, and where it needs a context on the device, 500 MB there."""
LONGEST_S = 10.0
"""The longest that anyone waits for a case that is being compiled."""
JOB, SOURCE = "precompile.json", "precompile.source"
NONE_YET = -1
COMPILER = "torch._dynamo"


class Precompiler:
    """Processes that share one queue of cases."""

    def __init__(self) -> None:
        self._queue, self._theirs = _pair()
        self._pids: list[int] = []
        self._doing: dict[socket.socket, int] = {}
        """By where a process reports, the case that it last began; of those that have not ended."""
        self._patient = True

    @classmethod
    def start(cls) -> Precompiler:
        """Fork them. Call before making a context on the device, which is not to be shared."""
        made = cls()
        for _ in range(max(1, min(MOST, len(os.sched_getaffinity(0)) // 2))):
            ours, theirs = _pair()
            pid = os.fork()
            if pid == 0:
                os.setsid()
                # Above all not the wire, whose end must tell the judge.
                _close_all_but(made._theirs, theirs)
                _serve_queue(made._theirs, theirs)
            theirs.close()
            made._pids.append(pid)
            made._doing[ours] = NONE_YET
        made._theirs.close()
        return made

    def begin(self, source: bytes, folder: Path, request: dict[str, Any]) -> None:
        """Put the request's cases into the queue, in their order."""
        (folder / JOB).write_text(json.dumps(request))
        (folder / SOURCE).write_bytes(source)
        for number in range(len(request["cases"])):
            with suppress(OSError):  # none of them lives, or there is no room: no loss
                self._queue.send(json.dumps([str(folder), number]).encode(), socket.MSG_DONTWAIT)
        self._queue.shutdown(socket.SHUT_WR)

    def await_case(self, number: int) -> None:
        """Wait while somebody is at a case, by its place in the queue: he will be done before one
        who begins now."""
        deadline = time.monotonic() + LONGEST_S
        while self._hear(0.0):
            pass
        while self._patient and number in self._doing.values():
            self._patient = self._hear(deadline - time.monotonic())  # else never again

    def wait(self, limit_s: float) -> None:
        """Wait until all are done, and no longer than the limit; then end the processes."""
        deadline = time.monotonic() + limit_s
        while self._doing and self._hear(deadline - time.monotonic()):
            pass
        self.end()

    def _hear(self, limit_s: float) -> bool:
        """Take a report of each process that has one, or ends; whether any came within the
        limit."""
        ready, _, _ = select.select([*self._doing], [], [], max(0.0, limit_s))
        for sock in ready:
            report = sock.recv(64)
            if report:
                self._doing[sock] = int(report)
            else:
                del self._doing[sock]
                sock.close()
        return bool(ready)

    def end(self) -> None:
        """End the processes, whatever they are doing: all at once, since any may have a context on
        the device to give back."""
        for pid in self._pids:
            for kill in (os.killpg, os.kill):  # it may not lead its own group yet
                with suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        for pid in self._pids:
            with suppress(ChildProcessError):  # a submission may have reaped it
                os.waitpid(pid, 0)
        for sock in [self._queue, *self._doing]:
            sock.close()
        self._pids, self._doing = [], {}


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _close_all_but(*kept: socket.socket) -> None:
    """Close every descriptor but the standard ones and these."""
    start = 3
    for fd in sorted(sock.fileno() for sock in kept):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _serve_queue(queue: socket.socket, reports: socket.socket) -> None:
    """The life of one such process: case after case, until there is none left."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        from grader.runner.warmup import compile_warmup_kernel

        with reports:  # what the process gives back when it ends takes time, and is no part of it
            _stay_away()
            compile_warmup_kernel()
            _launch_nothing()
            precompile: Callable[[int], None] | None = None
            while message := queue.recv(8192):
                folder, number = json.loads(message)
                reports.send(str(number).encode())
                precompile = precompile or _loaded(Path(folder))
                precompile(number)
    except BaseException:  # noqa: BLE001 - the call itself will tell what is wrong
        os._exit(1)
    os._exit(0)


def _stay_away() -> None:
    """Tell Triton what it asks of the device: PyTorch, whom it would ask, makes a context there."""
    from cuda.bindings import driver as cuda
    from triton.runtime import driver

    cuda.cuInit(0)
    kinds = cuda.CUdevice_attribute
    major, minor = (
        cuda.cuDeviceGetAttribute(kind, 0)[1]
        for kind in (
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    active = driver.active
    active.get_current_device = lambda: 0
    active.get_current_stream = lambda device: 0
    active.get_device_capability = lambda device: (major, minor)


def _launch_nothing() -> None:
    """Have calls of kernels compile them and build their launchers, and no more. Of configurations
    to choose from all are compiled, none is timed, and no choice is written to the cache."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    from grader.runner import triton_launcher

    triton_launcher.build_launchers_while_compiling()
    run = JITFunction.run

    def compiled(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(function, *arguments, grid=grid, warmup=True, **options)

    def once(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        call()
        return [0.0] * len(quantiles)

    def untold(tuner: Any, key: Any, configurations: Any, tune: Callable[[], None]) -> bool:
        tune()
        return False

    JITFunction.run = compiled
    Autotuner.do_bench = property(lambda tuner: once)
    Autotuner.check_disk_cache = untold


def _loaded(folder: Path) -> Callable[[int], None]:
    """Load the submission, from files of its own; what calls it for the case of a number, on
    tensors without memory, and on zeros from when that failed on."""
    import torch

    from grader.runner.fake_tensors import FakeCudaMode, FakeCudaTensor

    job = json.loads((folder / JOB).read_text())
    source = (folder / SOURCE).read_bytes()

    def load(name: str) -> EntryPoint:
        own = folder / f"precompile{os.getpid()}.{name}"
        own.mkdir()
        return load_python(source, own, job)

    was_loaded = COMPILER in sys.modules
    entry = load("absent")
    # What it makes of an entry is for the device that tensors are on in earnest.
    is_absent = was_loaded or COMPILER not in sys.modules

    def precompile(number: int) -> None:
        nonlocal entry, is_absent
        case = job["cases"][number]
        values = list(map(unpack, case["values"]))
        if is_absent:
            absent = [
                _made(value, lambda slot: FakeCudaTensor(tensor_like(slot, "meta")))
                for value in values
            ]
            try:
                with FakeCudaMode(), _without_compiler():
                    entry.call(entry.prepare(absent, case))
            except Exception:  # noqa: BLE001 - it needs values, or the device in earnest, or too much
                # What it has kept of those tensors must not be met again.
                entry, is_absent = load("zeros"), False
        if not is_absent:
            with suppress(Exception):  # the call itself will tell; the next case may do better
                zeros = [_made(value, lambda slot: tensor_like(slot, "cuda")) for value in values]
                entry.call(entry.prepare(zeros, case))
                torch.cuda.synchronize()

    return precompile


@contextmanager
def _without_compiler() -> Iterator[None]:
    """While it lasts, PyTorch's compiler cannot be imported, if it is not there yet: for arithmetic
    on no device PyTorch would, which takes seconds in each process, and a context half a second."""
    if COMPILER in sys.modules:
        yield
        return
    sys.modules[COMPILER] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[COMPILER]


def _made(value: Any, tensor: Callable[[TensorSpec], Any]) -> Any:
    if isinstance(value, TensorSpec):
        return tensor(value)
    if isinstance(value, list):
        return [tensor(slot) for slot in value]
    return value
