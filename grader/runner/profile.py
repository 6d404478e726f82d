"""Profile a loaded entry: PyTorch's profiler around its calls, and the compiled code.

The results go into files that the judge lends. They are untrusted, like everything from this
process: they serve the kernel's author, and no verdict depends on them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.runner import ncu
from grader.runner.disassembly import CompiledKernel, ToolError, compiled_kernels, ptx_of_cuda
from grader.runner.load_submission import write_lent

if TYPE_CHECKING:
    from grader.runner.serve import Server

MOST_KERNELS = 40
NAME_CHARS = 300
TABLE_ROWS = 40
TABLE_CHARS = 100_000
NOTE_CHARS = 300
GPU_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of trace events that run on the GPU."""


def profile(server: Server, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Write the lent files: facts (JSON), trace (Chrome's JSON), PTX and SASS, in this order.

    With `run` false the entry is not called, and only the compiled code is read.
    """
    facts: dict[str, Any] = {"calls": 0, "kernels": [], "table": "", "notes": [], "ncu": []}
    trace = b""
    if request["run"]:
        trace = _profile_calls(server, facts)
    compiled, ptx = _compiled_code(server, facts)
    _add_compiled(facts, compiled)
    if request["run"]:
        _add_counters(server, facts)
    sass = "\n".join(f"// {kernel.name}\n{kernel.sass}" for kernel in compiled)
    files = {"trace": trace, "ptx": ptx.encode(), "sass": sass.encode()}
    for fd, (name, content) in zip(fds[1:], files.items(), strict=True):
        facts[f"{name}_bytes"] = _write_capped(fd, content, name, facts["notes"])
    facts["notes"] = [note[:NOTE_CHARS] for note in facts["notes"]]
    os.pwrite(fds[0], json.dumps(facts).encode(), 0)
    return {"calls": facts["calls"]}


def _profile_calls(server: Server, facts: dict[str, Any]) -> bytes:
    """Call every set under the profiler, and time the calls without it; returns the trace."""
    order = list(range(len(server.prepared)))
    facts["calls"] = len(order)
    body = _body(server)
    body()  # compiles kernels that are not compiled yet
    facts["eager_us"] = _round_us(server, order, graph=False)
    trace = _trace(server, body, facts)
    if server.device == "cuda":
        # Capture comes last: a failed one may leave a stream on which nothing can be timed.
        server.capture({"order": order}, [])
        if server.graph is not None:
            facts["graph_us"] = _round_us(server, order, graph=True)
    return trace


def _body(server: Server) -> Callable[[], None]:
    """A function that calls every set once and waits for the device."""

    def body() -> None:
        assert server.entry is not None
        if server.device == "cpu":
            for prepared in server.prepared:
                server.entry.call(prepared)
            return
        import torch

        with torch.cuda.stream(server.stream):
            for prepared in server.prepared:
                server.entry.call(prepared)
        torch.cuda.synchronize()

    return body


def _round_us(server: Server, order: list[int], graph: bool) -> float:
    """The fastest of three rounds, microseconds."""
    request = {"order": order, "graph": graph}
    server.ready(request, [])
    return float(min(server.go({}, [])["reported_ns"] for _ in range(3)) / 1e3)


def _trace(server: Server, body: Callable[[], None], facts: dict[str, Any]) -> bytes:
    """Run `body` under PyTorch's profiler; add its table and kernels to the facts."""
    import torch
    from torch.profiler import ProfilerActivity

    on_gpu = server.device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities):
        body()  # the first use of the profiler is slow
    with torch.profiler.profile(activities=activities) as profiler:
        body()
    averages = profiler.key_averages()
    by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    facts["table"] = averages.table(sort_by=by, row_limit=TABLE_ROWS)[:TABLE_CHARS]
    path = Path(os.environ["GRADE_SCRATCH"]) / "profile-trace.json"
    profiler.export_chrome_trace(str(path))
    trace = path.read_bytes()
    path.unlink()
    if on_gpu:
        events = [e for e in json.loads(trace)["traceEvents"] if e.get("cat") in GPU_EVENTS]
        facts["busy_us"] = busy_us(events)
        facts["kernels"] = kernels(events)
        if not events:
            facts["notes"].append("the profiler saw nothing run on the GPU")
    return trace


def kernels(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Launches of a trace grouped by kernel and launch shape, the longest total time first."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        details = event.get("args", {})
        key = {
            "name": event["name"][:NAME_CHARS],
            "grid": _sizes(details.get("grid")),
            "block": _sizes(details.get("block")),
            "registers": _integer(details.get("registers per thread")),
            "shared_bytes": _integer(details.get("shared memory")),
        }
        entry = found.setdefault(json.dumps(key), key | {"launches": 0, "total_us": 0.0})
        entry["launches"] += 1
        entry["total_us"] += event.get("dur", 0.0)
    return sorted(found.values(), key=lambda k: -k["total_us"])


def _integer(value: Any) -> int | None:
    """A number of the trace; None for anything else that a version of the profiler may write."""
    return value if isinstance(value, int) and value >= 0 else None


def _sizes(value: Any) -> list[int] | None:
    is_shape = isinstance(value, list) and len(value) == 3 and all(map(_integer, value))
    return value if is_shape else None


def busy_us(events: list[dict[str, Any]]) -> float:
    """Microseconds during which at least one of the events was running."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((e["ts"], e["ts"] + e.get("dur", 0.0)) for e in events):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _compiled_code(server: Server, facts: dict[str, Any]) -> tuple[list[CompiledKernel], str]:
    """The compiled kernels and their PTX; if it is known which ran, only those."""
    folder = Path(os.environ["GRADE_JIT"])
    ran = {k["name"] for k in facts["kernels"]} or None
    try:
        compiled = [
            c for c in compiled_kernels(folder, ran) if ran is None or c.name[:NAME_CHARS] in ran
        ]
        if not compiled:
            facts["notes"].append(_no_code_note(server))
            return [], ""
        ptx = "\n".join(f"// {code.name}\n{code.ptx}" for code in compiled if code.ptx)
        if server.loaded["language"] == "cuda":
            ptx = ptx_of_cuda(folder, server.loaded["nvcc_target"])
    except ToolError as error:
        facts["notes"].append(f"no PTX and SASS: {error}")
        return [], ""
    return _launched(compiled, facts["kernels"]), ptx


def _no_code_note(server: Server) -> str:
    if server.loaded["language"] == "cuda":
        return "the compiled file holds no kernel: no registers, PTX or SASS"
    if server.device == "cpu":
        return "on a CPU nothing is compiled for a GPU: no registers, PTX or SASS"
    return "the submission compiled no kernel here: no PTX and SASS"


def _launched(compiled: list[CompiledKernel], seen: list[dict[str, Any]]) -> list[CompiledKernel]:
    """Of kernels with the same name, as autotuning leaves them, only those that ran."""
    exact = [c for c in compiled if any(_matches(c, kernel) for kernel in seen)]
    known = {c.name for c in exact}
    return exact + [c for c in compiled if c.name not in known]


def _matches(code: CompiledKernel, kernel: dict[str, Any]) -> bool:
    """Whether a kernel that ran may be this compiled one, by name and registers.

    The profiler reports registers as compiled, or as allocated, rounded up to a multiple of 8.
    """
    if code.name[:NAME_CHARS] != kernel["name"]:
        return False
    return kernel["registers"] in (code.registers, -(-code.registers // 8) * 8)


def _add_compiled(facts: dict[str, Any], compiled: list[CompiledKernel]) -> None:
    """Add the facts of the compiled code to each kernel that ran; if none ran, list the code."""
    if not facts["calls"]:
        facts["kernels"] = [
            {"name": c.name[:NAME_CHARS], "registers": c.registers, "shared_bytes": c.shared_bytes}
            for c in sorted(compiled, key=lambda c: (-c.local_bytes, -c.registers))
        ]
    for kernel in facts["kernels"]:
        for code in compiled:
            if _matches(code, kernel):
                kernel |= {
                    "local_bytes": code.local_bytes,
                    "local_instructions": code.local_instructions,
                    "tensor_instructions": code.tensor_instructions,
                }
    left_out = len(facts["kernels"]) - MOST_KERNELS
    if left_out > 0:
        facts["notes"].append(
            f"{left_out} more kernels, each with a shorter total time, are not listed"
        )
        del facts["kernels"][MOST_KERNELS:]


def _add_counters(server: Server, facts: dict[str, Any]) -> None:
    """Add hardware counters, if they are permitted."""
    try:
        facts["ncu"] = ncu.measure(server)
    except ncu.CountersUnavailable as reason:
        facts["notes"].append(f"ncu: {reason}")


def _write_capped(fd: int, content: bytes, name: str, notes: list[str]) -> int:
    """Write a lent file of fixed size; returns the bytes written.

    Text that does not fit is cut; a trace that does not fit is left out. Either adds a note.
    """
    room = os.fstat(fd).st_size
    if len(content) > room:
        what = "left out" if name == "trace" else "cut"
        notes.append(f"the {name} has {len(content) >> 20} MiB, more than {room >> 20}: {what}")
        content = b"" if name == "trace" else content[:room]
    write_lent(fd, content)
    return len(content)
