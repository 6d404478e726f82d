"""What do a reference kernel, plain PyTorch and torch.compile launch in one benchmark case?

    python -m benchmarks.launches PROBLEM CASE [--only reference|eager|compiled]
    ncu --profile-from-start off --set full python -m benchmarks.launches PROBLEM CASE --once …

Prints each launch with its median time by CUPTI (cold L2), grid, threads, registers and shared
memory, and the sum of a call. With --once, each implementation is called once, and only that is
profiled by ncu.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu import require_gpu
from benchmarks.tune import Candidate, cuda_entry, empty_outputs, entry
from grader.judge.case_shapes import entry_of
from grader.judge.problem_code import ProblemCode, Values
from grader.problem import Problem
from grader.problem.spec import Case

ROOT = Path(__file__).resolve().parent.parent
CALLS = 20
L2_BYTES = 256 << 20
"""More than any L2 cache."""
COLUMNS = ("registers per thread", "shared memory")

Launch = dict[str, Any]
"""A kernel of a profile in Chrome's trace format: name, dur in µs, args."""


def implementations(code: ProblemCode, case: Case) -> Iterator[tuple[str, Candidate]]:
    """The reference kernels of the problem, its eager function, and that compiled."""
    for path in sorted((ROOT / "reference" / code.problem.name).glob("*.*")):
        shape = entry_of(code.problem, case)
        if path.suffix == ".cu":
            yield (
                f"reference {path.name}",
                cuda_entry(path.read_text(), shape["symbol"], shape["dims"]),
            )
        elif path.suffix == ".py":
            yield (
                f"reference {path.name}",
                entry(str(path.relative_to(ROOT)), code.problem.spec.entry),
            )
    for name, function in (("eager", code.eager), ("compiled", torch.compile(code.eager))):
        bound = code.bound(function, case)

        def call(values: Values, _outs: Values, bound: Any = bound) -> None:
            bound(**values)  # `grade baseline` does not time a copy to the output either

        yield name, call


def launches(call: Candidate, values: Values, outs: Values) -> list[list[Launch]]:
    """The launches of each of `CALLS` calls, in order."""
    flush = torch.empty(L2_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(3):
        call(values, outs)
    flush.zero_()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(CALLS):
            flush.zero_()
            call(values, outs)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    device = ("kernel", "gpu_memset", "gpu_memcpy")
    events = sorted((e for e in events if e.get("cat") in device), key=lambda e: float(e["ts"]))
    calls: list[list[Launch]] = []
    for event in events:
        if event["args"].get("bytes") == L2_BYTES or _is_fill(event):
            calls.append([])
        elif calls:
            calls[-1].append(event)
    return calls


def _is_fill(event: Launch) -> bool:
    """Whether this clears the cache: PyTorch fills int8 with a kernel in some versions."""
    return "FillFunctor<signed char>" in event["name"]


def show(name: str, calls: list[list[Launch]]) -> None:
    """Print a line for each launch of a call, and the sum."""
    for same in zip(*calls, strict=True):
        first = same[0]
        args = first["args"]
        sizes = [f"{key} {args[key]}" for key in COLUMNS if key in args]
        grid = f"{args.get('grid', '')} × {args.get('block', '')}"
        print(f"  {median(e['dur'] for e in same):9.2f} µs  {first['name'][:90]}")
        print(f"               {grid}  {', '.join(sizes)}")
    total = median(sum(e["dur"] for e in call) for call in calls)
    print(f"  {total:9.2f} µs  {name}, all\n", flush=True)


@click.command()
@click.option("--only", default="", help="Only implementations with this in their name.")
@click.option("--once", is_flag=True, help="Call each once, for ncu.")
@click.argument("problem")
@click.argument("case")
def main(problem: str, case: str, only: str, once: bool) -> None:
    """Show the launches of PROBLEM's implementations in CASE."""
    require_gpu()
    code = ProblemCode(Problem.load(ROOT / "problems" / problem), "cuda")
    named = {each.name: each for each in code.problem.cases("benchmark", "cuda")}
    if case not in named:
        raise click.UsageError(f"{problem} has no benchmark case {case!r}: {', '.join(named)}")
    values = code.inputs(named[case], 1)
    outs = empty_outputs(code, named[case], values)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {problem} {case}", flush=True
    )
    for name, call in implementations(code, named[case]):
        if only not in name:
            continue
        if once:
            call(values, outs)
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            call(values, outs)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
        else:
            show(name, launches(call, values, outs))


if __name__ == "__main__":
    main()
