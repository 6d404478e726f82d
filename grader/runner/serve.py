"""Answer the judge's requests, one at a time: load, lend, call, capture, ready, go.

From `load` on this process belongs to the submission, so nothing here is relied upon for the
verdict; it only has to be plain and fair to an honest kernel.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grader.arena import Layout, TensorSpec, view, views
from grader.runner.compiler import read_library
from grader.runner.load import EntryPoint, LoadError, load_cuda, load_python, read_lent
from grader.runner.precompile import Precompiler
from grader.runner.profile import profile
from grader.wire import (
    TEXT_BYTES,
    Flag,
    Reply,
    Status,
    WireClosed,
    has_request,
    receive_request,
    send_reply,
    spin_until_request,
)


class Server:
    """The state of one runner: the loaded entry, the lent block, and a captured graph."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.entry: EntryPoint | None = None
        self.loaded: dict[str, Any] = {}
        """The request that `entry` came of."""
        self.arena: Any = None
        self.case: dict[str, Any] = {}
        self.sets: list[list[Any]] = []
        self.prepared: list[Any] = []
        self.graph: Any = None
        self.body: Any = None
        self.stream: Any = None
        self.gate: int | None = None
        """What the lent block's first word must have reached when the prepared round starts."""
        self.events: Any = None
        self.precompiler: Precompiler | None = None
        self.busy_wait = False
        """Whether to wait for requests without sleeping, since a clock runs when they come."""
        self.has_device = self.is_warm = device == "cpu"
        """Whether the device is ready, and all is loaded that compiling a Triton kernel needs."""

    def init_device(self, triton: bool) -> None:
        """Make the device's context, and what only Triton's kernels need if any may come."""
        self.has_device = True
        if triton:
            from triton.runtime import driver

            from grader.runner import triton_launcher

            triton_launcher.install()
            self.precompiler = Precompiler.start()  # forks, so it comes before the context
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)  # every call finds it current
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        if triton:
            # Triton builds a helper in C the first time; nobody's kernel shall pay for it.
            driver.active.get_current_device()
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()

    def warm_up_triton(self) -> None:
        """Load what compiling a Triton kernel needs."""
        from grader.runner.warmup import compile_warmup_kernel

        self.is_warm = True
        compile_warmup_kernel()

    def warm_up(self) -> None:
        """While nobody asks for anything: make ready for whatever submission may come."""
        if not self.has_device:
            self.init_device(triton=True)
        elif not self.is_warm:
            self.warm_up_triton()

    def hello(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Set up what this submission needs, if that is not done; tell our versions."""
        versions = {"python": sys.version.split()[0], "torch": torch.__version__}
        if not self.has_device:
            self.init_device(request["triton"])
        if not request["triton"]:
            self.is_warm = True  # it will compile no such kernel
            if self.precompiler is not None:
                self.precompiler.end()
                self.precompiler = None
        else:
            import triton

            versions["triton"] = triton.__version__
        return {"text": " ".join(f"{name}={version}" for name, version in versions.items())}

    def idle(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Until a submission is loaded, a call only reads the first tensor that is lent, and writes
        the second. With such calls the judge gauges its own clock."""

        def call(arguments: list[Any]) -> None:
            reads, writes = arguments
            reads.sum()
            writes.zero_()

        self.entry = EntryPoint(call)
        return {}

    def load(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Make the lent source a callable entry; of a `.cu` file, the library lent with it."""
        self.is_warm = True  # from here on it does what it is told, and no more
        source = read_lent(fds[0], request["source_bytes"])
        self.loaded = request
        folder = Path(os.environ["GRADE_JIT"])
        if self.precompiler is not None and len(fds) > 1:
            cases = json.loads(read_lent(fds[1], request["cases_bytes"]))
            self.precompiler.begin(source, folder, request | {"cases": cases})
        if request["language"] == "cuda":
            library = folder / "submission.so"  # for the profile too, as its source is
            library.write_bytes(read_library(fds[1]))
            (folder / "submission.cu").write_bytes(source)
            self.entry = load_cuda(library, request)
        else:
            self.entry = load_python(source, folder, request)
        return {"flags": Flag.RETURNS if self.entry.returns else 0}

    def finish_precompiling(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Wait for the precompiler that goes on beside the tests, and end it."""
        if self.precompiler is not None:
            self.precompiler.wait(request["limit_s"])
        return {}

    def lend(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Build the tensors of every set of a lent block; forget the block before it. Without a
        descriptor of its own it lies where that one lay. Kernels that are being compiled for it are
        waited for."""
        self.graph = None
        self.sets, self.prepared = [], []
        layout = Layout.from_json(read_lent(fds[0], request["layout_bytes"]))
        if len(fds) > 1:
            self._attach(fds[1], request["arena_bytes"])
            fds.pop(1)  # the arena owns it now
        for values in layout.sets:
            self.sets.append([_materialise(self.arena.buffer, value) for value in values])
        self.case = request
        self.busy_wait = self.device == "cuda"
        if self.entry is not None:
            self.prepared = [self.entry.prepare(values, request) for values in self.sets]
        if self.precompiler is not None and request["shape"] is not None:
            self.precompiler.await_case(request["shape"])
        return {}

    def _attach(self, fd: int, nbytes: int) -> None:
        """Map lent memory, and own its descriptor, in place of what was mapped before."""
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        if self.device == "cuda":
            from grader.arena.cuda import CudaArena

            self.arena = CudaArena.attach(fd, nbytes)
        else:
            from grader.arena.host import HostArena

            self.arena = HostArena.attach(fd, nbytes)

    def call(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Call the entry once on one set, with scalars replaced as the request says."""
        assert self.entry is not None
        arguments = list(self.sets[request["set"]])
        for position, value in request["scalars"].items():
            arguments[int(position)] = value
        self.entry.call(self.entry.prepare(arguments, self.case))
        self._wait()
        return {"calls": 1}

    def capture(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Call every set once, then try to capture one call per set into a CUDA graph."""
        from grader.arena.cuda import end_call

        assert self.entry is not None
        graph = torch.cuda.CUDAGraph()
        self.graph = None
        self._run(request["order"])  # what is planned once per set must not be in the graph
        self._wait()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                for index in request["order"]:
                    self._run([index])
                    end_call(self.stream)
            self.graph = graph
        except Exception:  # noqa: BLE001 - whatever it was, rounds run eagerly: never a fault
            torch.cuda.synchronize()
        return {"flags": Flag.GRAPH if self.graph is not None else 0}

    def ready(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Prepare a round: the sets in their order, or a replay of the graph."""
        order = request["order"]
        self.body = (
            self.graph.replay if request["graph"] and self.graph else partial(self._run, order)
        )
        return {"calls": len(order)}

    def ping(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Nothing: so that both sides are awake when the clock starts."""
        return {}

    def go(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run the prepared round, when the gate is open if there is one, and claim its time."""
        self.gate = request.get("gate")
        return {"reported_ns": self._timed(self.body)}

    def _run(self, order: list[int]) -> None:
        assert self.entry is not None or not order
        for index in order:
            self.entry.call(self.prepared[index])  # type: ignore[union-attr]

    def _timed(self, body: Any) -> int:
        gc.disable()  # until the reply is sent: a collection would be timed
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


def serve(sock: socket.socket, server: Server) -> None:
    """Answer requests until the judge hangs up."""
    handlers: dict[str, Any] = {
        "hello": server.hello,
        "load": server.load,
        "finish_precompiling": server.finish_precompiling,
        "lend": server.lend,
        "call": server.call,
        "capture": server.capture,
        "ready": server.ready,
        "ping": server.ping,
        "go": server.go,
        "idle": server.idle,
        "profile": lambda request, fds: profile(server, request, fds),
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
    """What went wrong, in a line; all of it is printed, for whoever wrote the submission."""
    text = _summary(error)
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
        # An exception of the submission's own may do anything when it is shown.
        with contextlib.suppress(BaseException):
            _show(cause)
    return Reply(sequence, status, text=text)


def _show(error: BaseException) -> None:
    """Print an error as Python does, without the frames of ours that led to the submission."""
    calls = error.__traceback__
    while calls is not None and not _is_submission(calls.tb_frame.f_code.co_filename):
        calls = calls.tb_next
    shown = "".join(traceback.format_tb(calls))
    what = "".join(traceback.format_exception_only(error))
    print(shown[-TEXT_BYTES:], what[:TEXT_BYTES], sep="", end="", file=sys.stderr)


def _summary(error: BaseException) -> str:
    """`ValueError: text (line 12 of submission.py)`, the innermost line of the submission's own."""
    where = ""
    try:
        for frame in traceback.extract_tb(error.__traceback__):
            if _is_submission(frame.filename):
                where = f" (line {frame.lineno} of the submission)"
        return f"{type(error).__name__}: {error}{where}"
    except BaseException:  # noqa: BLE001 - one of the submission's own may not even have a text
        return f"an exception that cannot be shown{where}"


def _is_submission(file: str) -> bool:
    return Path(file).name == "submission.py"


def _materialise(buffer: Any, value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return view(buffer, value)
    if isinstance(value, list):
        return views(buffer, value)
    return value
