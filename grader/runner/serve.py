"""Serve the judge's requests, one at a time: load, lend, call, capture, ready, go.

From `load` on the submission controls this process, so the verdict does not rely on any of it. It
must only be fair to an honest kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grader.arena import Layout, TensorSpec, view, views
from grader.precision import keep_partial_sums_in_fp32
from grader.runner.entry_point import EntryPoint, LoadError
from grader.runner.error_text import printed, summary
from grader.runner.kept_kernels import keep_kernels, restore_kernels
from grader.runner.load_cuda import load_cuda, write_cuda
from grader.runner.load_submission import load_python, read_lent, write_files
from grader.runner.precompile import Precompiler
from grader.runner.profile import profile
from grader.wire import (
    Flag,
    Reply,
    Status,
    WireClosed,
    has_request,
    receive_request,
    send_reply,
    spin_until_request,
)

PER_THREAD_STREAM = 2
"""CUDA's handle of the calling thread's default stream. A graph can be captured on it, and not on
the legacy default stream. Work on that one, such as a library's, waits for it and is awaited."""

MOST_CACHED_BYTES = 1 << 30
"""Device memory that may stay cached where it is freed."""


class Server:
    """The state of one runner: the loaded entry, the lent block, and the captured graph."""

    def __init__(self, device: str) -> None:
        keep_partial_sums_in_fp32()
        self.device = device
        self.entry: EntryPoint | None = None
        self.loaded: dict[str, Any] = {}
        """The request that loaded `entry`."""
        self.arena: Any = None
        self.case: dict[str, Any] = {}
        self.sets: list[list[Any]] = []
        """The arguments of each set as the judge lends them."""
        self.completed: list[list[Any]] = []
        """The same with what the submission's setup adds."""
        self.prepared: list[Any] = []
        self.graph: Any = None
        self.body: Any = None
        self.stream: Any = None
        self.gate: int | None = None
        """The value of the lent block's first word to wait for before a round; None: no wait."""
        self.events: Any = None
        self.precompiler: Precompiler | None = None
        self.busy_wait = False
        """Whether to poll for requests without sleeping, so that waking up is not timed."""
        self.has_compiler = self.has_device = device == "cpu"
        """Whether Triton's compiler is loaded, and the device is initialized."""
        self.opens_device = False
        """Whether to initialize the device before a submission is there."""

    def load_compiler(self) -> None:
        """Load Triton's compiler, by compiling a kernel. Before there is a device context it makes
        none, and the precompiler, which is forked then, has the compiler too."""
        from grader.runner import triton_key, triton_launcher, warmup

        self.has_compiler = True
        triton_key.install()
        triton_launcher.install()
        if self.has_device:
            warmup.compile_warmup_kernel()
        else:
            warmup.compile_without_device()
            warmup.build_helper()
            self.precompiler = Precompiler.start()

    def init_device(self, triton: bool) -> None:
        """Create the device context. With `triton`, also fork the precompiler, unless there is one,
        and load Triton's helper module."""
        self.has_device = True
        if triton and self.precompiler is None:
            from grader.runner import triton_key, triton_launcher

            triton_key.install()
            triton_launcher.install()
            self.precompiler = Precompiler.start()  # it forks, so before there is a context
        self.stream = _blocking_stream()
        torch.cuda.set_stream(self.stream)  # the current stream of every call
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        if triton or self.has_compiler:
            from triton.runtime import driver

            # This builds a helper in C, if nothing has, which must not count as a kernel's time.
            driver.reset_active()
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()

    @property
    def is_warm(self) -> bool:
        """Whether there is nothing left to prepare."""
        return self.has_compiler and (self.has_device or not self.opens_device)

    def warm_up(self) -> None:
        """Do one step of preparation, while no request is waiting."""
        if not self.has_compiler:
            self.load_compiler()
        else:
            self.init_device(triton=True)

    def hello(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Initialize what the submission's language needs; the reply lists library versions."""
        versions = {"python": sys.version.split()[0], "torch": torch.__version__}
        if not self.has_device:
            self.init_device(request["triton"])
        if not request["triton"]:
            self.has_compiler = True  # the submission needs none
            self._end_precompiler()
        else:
            import triton

            versions["triton"] = triton.__version__
        return {"text": " ".join(f"{name}={version}" for name, version in versions.items())}

    def idle(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Load an entry that only reads the first lent tensor and writes the second.

        The judge calibrates its clock with it, before the submission is loaded.
        """

        def call(arguments: list[Any]) -> None:
            reads, writes = arguments
            reads.sum()
            writes.zero_()

        self.entry = EntryPoint(call)
        return {}

    def load(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Load the entry from the lent source, or for a `.cu` file from the lent library."""
        self.has_compiler = True  # no more preparation from here on
        source = read_lent(fds[0], request["source_bytes"])
        self.loaded = request
        folder = Path(os.environ["GRADE_JIT"])
        if "files" in request:
            write_files(folder, fds[-1], request["files"])
        following = iter(fds[1:])
        if "kernels_bytes" in request:
            restore_kernels(next(following), request["kernels_bytes"])
        if "cases_bytes" not in request:
            self._end_precompiler()
        elif self.precompiler is not None:
            cases = json.loads(read_lent(next(following), request["cases_bytes"]))
            capability = torch.cuda.get_device_capability()
            job = request | {"cases": cases, "capability": capability}
            self.precompiler.begin(source, folder, job)
        if request["language"] == "cuda":
            write_cuda(folder, source, read_lent(fds[1], request["library_bytes"]))
            self.entry = load_cuda(folder, request, self.device)
            if self.entry.on_default_stream and self.device == "cuda":
                self._use_default_stream()
        else:
            self.entry = load_python(source, folder, request)
        return {"flags": Flag.RETURNS if self.entry.returns else 0}

    def _use_default_stream(self) -> None:
        """Make this thread's default stream the one of every call, event and graph."""
        self._wait()
        self.stream = torch.cuda.ExternalStream(PER_THREAD_STREAM)
        torch.cuda.set_stream(self.stream)

    def finish_precompiling(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Wait for the precompiler, then end it."""
        if self.precompiler is not None:
            self.precompiler.wait(request["limit_s"])
        return {}

    def _end_precompiler(self) -> None:
        if self.precompiler is not None:
            self.precompiler.end()
            self.precompiler = None

    def keep_kernels(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Write what Triton has compiled into lent memory; the reply's `calls` is its length."""
        return {"calls": keep_kernels(fds[0])}

    def lend(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Build the tensors of every set of a lent block, in place of the previous block.

        Without a new descriptor it uses the previous block's memory. Waits if the precompiler is
        compiling for this case.
        """
        self.graph = None
        self.sets, self.completed, self.prepared = [], [], []
        layout = Layout.from_json(read_lent(fds[0], request["layout_bytes"]))
        if len(fds) > 1:
            self._attach(fds[1], request["arena_bytes"])
            fds.pop(1)  # now owned by the arena
        for values in layout.sets:
            self.sets.append([_tensors(self.arena.buffer, value) for value in values])
        self.case = request
        self.busy_wait = False  # nothing is timed before the next round
        if self.entry is not None:
            self.completed = list(map(self.entry.setup, self.sets))
            self.prepared = [self.entry.prepare(values, request) for values in self.completed]
        if self.precompiler is not None and request["shape"] is not None:
            self.precompiler.await_case(request["shape"])
        return {}

    def release(self) -> None:
        """Forget the lent block, whose memory the judge frees."""
        self.graph = None
        self.sets, self.completed, self.prepared = [], [], []
        if self.arena is not None:
            self.arena.close()
            self.arena = None

    def _attach(self, fd: int, nbytes: int) -> None:
        """Map lent memory in place of the previous block, and own its descriptor."""
        self.release()
        if self.device == "cuda":
            from grader.arena.cuda_arena import CudaArena

            self.arena = CudaArena.attach(fd, nbytes)
        else:
            from grader.arena.host_arena import HostArena

            self.arena = HostArena.attach(fd, nbytes)

    def call(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Call the entry once on one set, with the scalars that the request replaces."""
        assert self.entry is not None
        arguments = list(self.completed[request["set"]])
        for position, value in request["scalars"].items():
            arguments[int(position)] = value
        self.entry.call(self.entry.prepare(arguments, self.case))
        self._wait()
        if request.get("frees_cache"):
            self.free_cache()
        return {"calls": 1}

    def free_cache(self) -> None:
        """Leave device memory that this process only caches to the judge and to others."""
        if self.device == "cuda":
            cached_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            if cached_bytes > MOST_CACHED_BYTES:
                torch.cuda.empty_cache()

    def capture(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Call every set once, then try to capture one call per set into a CUDA graph."""
        from grader.arena.cuda_arena import end_call

        assert self.entry is not None
        graph = torch.cuda.CUDAGraph()
        self.graph = None
        self._run(request["order"])  # one-time setup per set must not be captured
        self._wait()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                for index in request["order"]:
                    self._run([index])
                    end_call(self.stream)
            self.graph = graph
        except Exception:  # noqa: BLE001 - not a fault: rounds then run eagerly
            torch.cuda.synchronize()
        return {"flags": Flag.GRAPH if self.graph is not None else 0}

    def ready(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Prepare a round: calls of the sets in order, or a replay of the graph."""
        order = request["order"]
        self.busy_wait = self.device == "cuda"
        self.body = (
            self.graph.replay if request["graph"] and self.graph else partial(self._run, order)
        )
        return {"calls": len(order)}

    def ping(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Do nothing: both sides are then awake when the clock starts."""
        return {}

    def go(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run the prepared round, after its gate if it has one, and report its time."""
        self.gate = request.get("gate")
        return {"reported_ns": self._timed(self.body)}

    def _run(self, order: list[int]) -> None:
        assert self.entry is not None or not order
        for index in order:
            self.entry.call(self.prepared[index])  # type: ignore[union-attr]

    def _timed(self, body: Any) -> int:
        gc.disable()  # enabled again after the reply: a collection would be timed
        if self.device == "cpu":
            start_ns = time.perf_counter_ns()
            body()
            return time.perf_counter_ns() - start_ns
        start, end = self.events
        if self.gate is not None:
            self.arena.await_gate(self.stream, self.gate)
        start.record(self.stream)
        body()
        end.record(self.stream)
        while not end.query():
            pass
        return int(start.elapsed_time(end) * 1e6)

    def _wait(self) -> None:
        if self.device == "cuda":
            self.stream.synchronize()
            # Work there holds up what follows on our stream, but not the end of what went before.
            torch.cuda.default_stream().synchronize()


def _blocking_stream() -> Any:
    """A new stream that waits for the work on CUDA's default stream, and that this waits for, which
    PyTorch's own streams do not. So a kernel that an extension launches with ``<<<grid, block>>>``
    belongs to its call: it follows the inputs, and the call ends after it."""
    handle = ctypes.c_void_p()
    cudart = torch.cuda.cudart()
    torch.cuda.check_error(cudart.cudaStreamCreate(ctypes.addressof(handle)))
    return torch.cuda.ExternalStream(handle.value)


def serve(sock: socket.socket, server: Server) -> None:
    """Serve requests until the judge hangs up."""
    from grader.runner.set_server import SetServer

    set_server = SetServer(server)
    handlers: dict[str, Any] = {
        "hello": server.hello,
        "load": server.load,
        "finish_precompiling": server.finish_precompiling,
        "keep_kernels": server.keep_kernels,
        "lend": server.lend,
        "call": server.call,
        "capture": server.capture,
        "ready": server.ready,
        "ping": server.ping,
        "go": server.go,
        "idle": server.idle,
        "profile": lambda request, fds: profile(server, request, fds),
        "set": set_server.handle,
    }
    while True:
        try:
            while not (server.is_warm or has_request(sock)):
                server.warm_up()
            if server.busy_wait:
                spin_until_request(sock)
            request, fds = receive_request(sock)
        except WireClosed:
            return
        if request["kind"] == "open_device":  # it has no reply
            server.opens_device = True
            continue
        sequence = request["sequence"]
        try:
            answer = handlers[request["kind"]](request, fds)
            reply = Reply(sequence, Status.OK, **answer)
        except BaseException as error:  # noqa: BLE001 - a submission may raise SystemExit too
            reply = _failure(sequence, error)
        finally:
            for fd in fds:
                os.close(fd)
        sys.stdout.flush()
        sys.stderr.flush()
        send_reply(sock, reply)
        gc.enable()


def _failure(sequence: int, error: BaseException) -> Reply:
    """The reply with a one-line error; the submission's lines are printed, for its author."""
    text = summary(error)
    if isinstance(error, LoadError):
        status, text = Status.COMPILE_ERROR, str(error)
    elif isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in text
    ):
        status = Status.OUT_OF_MEMORY
    else:
        status = Status.RUNTIME_ERROR
    cause = error.__cause__ if isinstance(error, LoadError) else error
    if cause is not None:
        # Formatting runs the submission's code, if the exception class is its own.
        with contextlib.suppress(BaseException):
            print(printed(cause), end="", file=sys.stderr)
    return Reply(sequence, status, text=text)


def _tensors(buffer: Any, value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return view(buffer, value)
    if isinstance(value, list):
        return views(buffer, value)
    return value
