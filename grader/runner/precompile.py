"""Compile a Triton submission's kernels for all cases in parallel, while the tests begin.

Triton compiles a kernel on its first call with new types and block sizes: a few tenths of a second
each, one after the other. Here several processes, forked before the runner uses the device, call
the entry on tensors of each case's shape. Kernels are compiled but not launched; the runner then
finds them in Triton's cache on disk.

The tensors have no memory (`fake_tensors`), so the processes need no CUDA context: creating and
destroying one for each takes half a second. An entry that fails on them is called on zeros on the
device instead. Each process takes the next case from one queue and reports that it has begun, so
that the runner can wait for a compilation in progress instead of starting it again. The results of
these calls are not used.

`compile_alone` does the same in a sandbox without a device, before the tests, and hands over what
Triton has made.
"""

from __future__ import annotations

import fcntl
import hashlib
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
from grader.runner.entry_point import EntryPoint
from grader.runner.kept_kernels import keep_kernels
from grader.runner.load_submission import load_python
from grader.runner.triton_key import TORCH_COMPILER

MOST_PROCESSES = 4
"""Each takes about 100 MB, and 500 MB on the device if it needs a context. A batch on 16 cores
makes 7,400 tests an hour with four and 5,900 with two. With older code it made 4,800 with three and
3,500 with eight, since those of the warm sandboxes take the processors."""
MOST_ALONE = 2
"""The same where nothing waits for them: several submissions are compiled at a time."""
CASE_TIMEOUT_S = 10.0
"""The longest wait for a case that is being compiled."""
JOB, SOURCE = "precompile.json", "precompile.source"
NO_CASE = -1


class Precompiler:
    """Processes that share one queue of cases."""

    def __init__(self) -> None:
        self._queue, self._queue_end = _socket_pair()
        self._pids: list[int] = []
        self._current: dict[socket.socket, int] = {}
        """Report socket of each live process → the case that it began last."""
        self._waits = True
        """False once a wait for a case has timed out."""

    @classmethod
    def start(cls, most: int = MOST_PROCESSES) -> Precompiler:
        """Fork the processes. Call before creating a CUDA context, which cannot be shared."""
        made = cls()
        for _ in range(max(1, min(most, len(os.sched_getaffinity(0)) // 2))):
            ours, theirs = _socket_pair()
            pid = os.fork()
            if pid == 0:
                os.setsid()
                # Close the wire above all: the judge detects the runner's exit by it.
                _close_all_but(made._queue_end, theirs)
                _serve_queue(made._queue_end, theirs)
            theirs.close()
            made._pids.append(pid)
            made._current[ours] = NO_CASE
        made._queue_end.close()
        return made

    def begin(self, source: bytes, folder: Path, request: dict[str, Any]) -> None:
        """Put the request's cases into the queue, in order."""
        (folder / JOB).write_text(json.dumps(request))
        (folder / SOURCE).write_bytes(source)
        for number in range(len(request["cases"])):
            with suppress(OSError):  # no live process, or a full queue: the runner compiles itself
                self._queue.send(json.dumps([str(folder), number]).encode(), socket.MSG_DONTWAIT)
        self._queue.shutdown(socket.SHUT_WR)

    def await_case(self, number: int) -> None:
        """Wait while a process compiles the case with this place in the queue.

        That process finishes sooner than a compilation started now. After one wait of
        `CASE_TIMEOUT_S` seconds there is no further waiting.
        """
        deadline = time.monotonic() + CASE_TIMEOUT_S
        while self._receive_reports(0.0):
            pass
        while self._waits and number in self._current.values():
            self._waits = self._receive_reports(deadline - time.monotonic())

    def wait(self, limit_s: float) -> None:
        """Wait until all cases are compiled or the limit has passed; then end the processes."""
        deadline = time.monotonic() + limit_s
        while self._current and self._receive_reports(deadline - time.monotonic()):
            pass
        self.end()

    def _receive_reports(self, limit_s: float) -> bool:
        """Read waiting reports, and drop processes that have ended; False after `limit_s` without
        any."""
        ready, _, _ = select.select([*self._current], [], [], max(0.0, limit_s))
        for sock in ready:
            report = sock.recv(64)
            if report:
                self._current[sock] = int(report)
            else:
                del self._current[sock]
                sock.close()
        return bool(ready)

    def end(self) -> None:
        """Kill the processes. All at once, since each may have a CUDA context to destroy."""
        for pid in self._pids:
            for kill in (os.killpg, os.kill):  # it may not lead its process group yet
                with suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        for pid in self._pids:
            with suppress(ChildProcessError):  # a submission may have reaped it
                os.waitpid(pid, 0)
        for sock in [self._queue, *self._current]:
            sock.close()
        self._pids, self._current = [], {}


def compile_alone(source: bytes, request: dict[str, Any], folder: Path, fd: int) -> int:
    """Compile the kernels of the request's cases where there is no device, and write Triton's cache
    into lent memory. Returns its length. What needs a device fails here, and is compiled beside the
    tests.

    The request has the time for it, `limit_s`, and the device's compute capability."""
    from grader.runner import triton_key, triton_launcher

    triton_key.install()
    triton_launcher.install()
    _load_compiler()
    precompiler = Precompiler.start(MOST_ALONE)
    precompiler.begin(source, folder, request)
    precompiler.wait(request["limit_s"])
    return keep_kernels(fd)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _close_all_but(*kept: socket.socket) -> None:
    """Close every descriptor except stdio and these."""
    start = 3
    for fd in sorted(sock.fileno() for sock in kept):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _serve_queue(queue: socket.socket, reports: socket.socket) -> None:
    """The main function of a process: compile cases until the queue is empty."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        with reports:  # closed before the process exits, as its teardown takes time
            _load_compiler()
            _disable_launches()
            _compile_each_kernel_once()
            precompile: Callable[[int], None] | None = None
            while message := queue.recv(8192):
                folder, number = json.loads(message)
                reports.send(str(number).encode())
                precompile = precompile or _loaded(Path(folder))
                precompile(number)
    except BaseException:  # noqa: BLE001 - the real call reports the error
        os._exit(1)
    os._exit(0)


def _load_compiler() -> None:
    """Load Triton's compiler, unless the runner had it when it forked, without a CUDA context."""
    from grader.runner.warmup import compile_without_device

    compile_without_device()


def _compile_for(capability: tuple[int, int]) -> None:
    """Have Triton compile for a device of this compute capability, without asking PyTorch for it,
    which would create a CUDA context."""
    from triton.runtime import driver

    from grader.runner.warmup import NoDevice

    driver.set_active(NoDevice(capability))


def _use_device() -> None:
    """Have Triton ask PyTorch for its device."""
    from triton.runtime import driver

    driver.reset_active()


def _compile_each_kernel_once() -> None:
    """Of the processes that need the same kernel, let one compile it. The others wait, and then
    find it in Triton's cache: a tenth of their time went into kernels that were compiled twice."""
    import triton.compiler

    compile_kernel = triton.compiler.compile

    def compile_once(source: Any, *arguments: Any, **options: Any) -> Any:
        which = f"{source.hash()} {arguments} {options}"
        path = Path(os.environ["GRADE_JIT"], hashlib.sha256(which.encode()).hexdigest())
        with path.open("w") as lock:  # the kernel releases it if the process dies
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_kernel(source, *arguments, **options)

    triton.compiler.compile = compile_once


def _disable_launches() -> None:
    """Make a kernel call only compile the kernel and build its launcher.

    An autotuner compiles all configurations, times none, and caches no choice.
    """
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    from grader.runner import triton_launcher

    triton_launcher.build_launchers_while_compiling()
    run = JITFunction.run

    def compile_only(
        function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any
    ) -> Any:
        return run(function, *arguments, grid=grid, warmup=True, **options)

    def call_once(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        call()
        return [0.0] * len(quantiles)

    def tune_uncached(tuner: Any, key: Any, configurations: Any, tune: Callable[[], None]) -> bool:
        tune()
        return False

    JITFunction.run = compile_only
    Autotuner.do_bench = property(lambda tuner: call_once)
    Autotuner.check_disk_cache = tune_uncached


def _loaded(folder: Path) -> Callable[[int], None]:
    """Load a private copy of the submission; a function that calls it for a case of the queue.

    It calls it on fake tensors, or on zeros from the first failure on.
    """
    import torch

    from grader.runner.fake_tensors import FakeCudaMode, FakeCudaTensor

    job = json.loads((folder / JOB).read_text())
    source = (folder / SOURCE).read_bytes()
    sys.path.insert(0, str(folder))  # where the files of another set lie, as for the runner

    def load(name: str) -> EntryPoint:
        own = folder / f"precompile{os.getpid()}.{name}"
        own.mkdir()
        return load_python(source, own, job)

    was_loaded = TORCH_COMPILER in sys.modules
    _compile_for(job["capability"])
    entry = load("fake")
    # A submission that uses torch.compile needs tensors that are really on the device.
    is_fake = was_loaded or TORCH_COMPILER not in sys.modules
    if not is_fake:
        _use_device()

    def precompile(number: int) -> None:
        nonlocal entry, is_fake
        case = job["cases"][number]
        values = list(map(unpack, case["values"]))
        if is_fake:
            fakes = [
                _build(value, lambda spec: FakeCudaTensor(tensor_like(spec, "meta")))
                for value in values
            ]
            try:
                with FakeCudaMode(), _without_compiler():
                    entry.call(entry.prepare(entry.setup(fakes), case))
            except Exception:  # noqa: BLE001 - it needs values, the device or torch.compile
                _use_device()
                # A fresh copy, since the first may have kept fake tensors.
                entry, is_fake = load("zeros"), False
        if not is_fake:
            with suppress(Exception):  # the real call reports it; the next case may succeed
                zeros = [_build(value, lambda spec: tensor_like(spec, "cuda")) for value in values]
                entry.call(entry.prepare(entry.setup(zeros), case))
                torch.cuda.synchronize()

    return precompile


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Block the import of PyTorch's compiler unless it is loaded.

    Arithmetic on meta tensors would import it, which takes seconds in each process; a context takes
    half a second.
    """
    if TORCH_COMPILER in sys.modules:
        yield
        return
    sys.modules[TORCH_COMPILER] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[TORCH_COMPILER]


def _build(value: Any, tensor: Callable[[TensorSpec], Any]) -> Any:
    if isinstance(value, TensorSpec):
        return tensor(value)
    if isinstance(value, list):
        return [tensor(spec) for spec in value]
    return value
