"""Answer the judge's requests, one at a time: load, lend, call, capture, round.

From `load` on this process belongs to the submission, so nothing here is relied upon for the
verdict; it only has to be plain and fair to an honest kernel.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from grader.arena import Layout, Slot, view
from grader.runner.load import Entry, LoadError, load_cuda, load_python
from grader.wire import TEXT_BYTES, Flag, Reply, Status, WireClosed, receive_request, send_reply


class Server:
    """The state of one runner: the loaded entry, the lent block, and a captured graph."""

    def __init__(self) -> None:
        self.device = "cpu"
        self.entry: Entry | None = None
        self.arena: Any = None
        self.case: dict[str, Any] = {}
        self.sets: list[list[Any]] = []
        self.prepared: list[Any] = []
        self.graph: Any = None
        self.stream: Any = None

    def hello(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Import what will be needed and make the device's context; tell our versions."""
        import torch

        self.device = request["device"]
        versions = {"python": sys.version.split()[0], "torch": torch.__version__}
        if request["triton"]:
            import triton

            versions["triton"] = triton.__version__
        if request["nvcc"]:
            versions["nvcc"] = _nvcc_version()
        if self.device == "cuda":
            self.stream = torch.cuda.Stream()
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
        return {"text": " ".join(f"{name}={version}" for name, version in versions.items())}

    def load(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Make the lent source a callable entry."""
        source = _read(fds[0], request["source_bytes"])
        folder = Path(os.environ["GRADE_JIT"])
        if request["language"] == "cuda":
            self.entry = load_cuda(source, folder, request)
        else:
            with self._on_stream():
                self.entry = load_python(source, folder, request)
        return {"flags": Flag.RETURNS if self.entry.returns else 0}

    def lend(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Map a lent block and build the tensors of every set; forget the block before it."""
        self.graph = None
        self.sets, self.prepared = [], []
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        layout = Layout.from_json(_read(fds[1], request["layout_bytes"]))
        if self.device == "cuda":
            from grader.arena.cuda import CudaArena

            self.arena = CudaArena.attach(fds[0], layout.nbytes)
        else:
            from grader.arena.host import HostArena

            self.arena = HostArena.attach(fds[0], layout.nbytes)
        fds.pop(0)  # the arena owns it now
        for values in layout.sets:
            self.sets.append([_materialise(self.arena.buffer, value) for value in values])
        self.case = request
        if self.entry is not None:
            self.prepared = [self.entry.prepare(values, request) for values in self.sets]
        return {}

    def call(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Call the entry once on one set, with scalars replaced as the request says."""
        assert self.entry is not None
        arguments = list(self.sets[request["set"]])
        for position, value in request["scalars"].items():
            arguments[int(position)] = value
        with self._on_stream():
            self.entry.call(self.entry.prepare(arguments, self.case))
        self._wait()
        return {"calls": 1}

    def capture(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Try to capture one call per set, in the given order, into a CUDA graph."""
        import torch

        assert self.entry is not None
        graph = torch.cuda.CUDAGraph()
        self.graph = None
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                for index in request["order"]:
                    self.entry.call(self.prepared[index])
            self.graph = graph
        except Exception:  # noqa: BLE001 - whatever it was, rounds run eagerly: never a fault
            torch.cuda.synchronize()
        return {"flags": Flag.GRAPH if self.graph is not None else 0}

    def round(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Call the sets in order, or replay the graph; claim the time of the whole round."""
        order = request["order"]
        with self._on_stream():
            replay = self.graph.replay if request["graph"] and self.graph else None
            claim_ns = self._timed(replay or (lambda: self._run(order)))
        return {"claim_ns": claim_ns, "calls": len(order)}

    def spin(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """A round that only keeps the device busy: how the judge calibrates its own clock."""
        cycles = request["cycles"]
        with self._on_stream():
            return {"claim_ns": self._timed(lambda: self._spin(cycles))}

    def _spin(self, cycles: int) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda._sleep(cycles)

    def _run(self, order: list[int]) -> None:
        assert self.entry is not None or not order
        for index in order:
            self.entry.call(self.prepared[index])  # type: ignore[union-attr]

    def _timed(self, body: Any) -> int:
        if self.device == "cpu":
            start_ns = time.perf_counter_ns()
            body()
            return time.perf_counter_ns() - start_ns
        import torch

        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record(self.stream)
        body()
        end.record(self.stream)
        end.synchronize()
        return int(start.elapsed_time(end) * 1e6)

    def _on_stream(self) -> Any:
        import contextlib

        if self.device == "cpu":
            return contextlib.nullcontext()
        import torch

        return torch.cuda.stream(self.stream)

    def _wait(self) -> None:
        if self.device == "cuda":
            self.stream.synchronize()


def serve(sock: socket.socket) -> None:
    """Answer requests until the judge hangs up."""
    server = Server()
    handlers = {
        "hello": server.hello,
        "load": server.load,
        "lend": server.lend,
        "call": server.call,
        "capture": server.capture,
        "round": server.round,
        "spin": server.spin,
    }
    while True:
        try:
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


def _failure(sequence: int, error: BaseException) -> Reply:
    import torch

    if isinstance(error, LoadError):
        status, text = Status.COMPILE_ERROR, str(error)
    elif isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    ):
        status, text = Status.OUT_OF_MEMORY, _summary(error)
    else:
        status, text = Status.RUNTIME_ERROR, _summary(error)
    if not isinstance(error, LoadError) or error.__cause__ is not None:
        shown = "".join(traceback.format_tb(error.__traceback__))
        print(shown[-TEXT_BYTES:], _summary(error)[:TEXT_BYTES], sep="", file=sys.stderr)
    return Reply(sequence, status, text=text)


def _summary(error: BaseException) -> str:
    """`ValueError: text (line 12 of submission.py)`, the innermost line of the submission's own."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).name == "submission.py":
            where = f" (line {frame.lineno} of the submission)"
    return f"{type(error).__name__}: {error}{where}"


def _materialise(buffer: Any, value: Any) -> Any:
    if isinstance(value, Slot):
        return view(buffer, value)
    if isinstance(value, list):
        return [view(buffer, slot) for slot in value]
    return value


def _read(fd: int, nbytes: int) -> bytes:
    parts = []
    offset = 0
    while offset < nbytes:
        part = os.pread(fd, nbytes - offset, offset)
        if not part:
            raise OSError("the judge's file is shorter than announced")
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _nvcc_version() -> str:
    import shutil
    import subprocess

    if shutil.which("nvcc") is None:
        return "none"
    done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False)
    words = done.stdout.split("release ", 1)
    return words[1].split(",", 1)[0] if len(words) == 2 else "none"
