"""The same kernel by three timers in one run: ours, triton.testing.do_bench, and NVIDIA's nvbench.

    python -m benchmarks.timers [--sandbox docker|process] [FILE]...

Needs a GPU, and the package `cuda-bench` for nvbench. FILE is an honest submission of the softmax
problem; by default the Triton and the PyTorch one. Ours is a full grading. `do_bench` is asked for
its median; it empties L2 before each call and times the call with a pair of events. nvbench is
asked for its batch time, over as many argument sets as a round of ours has: of calls launched one
by one, and of CUDA graphs that hold a call for every set, again and again until they last some
milliseconds. The first waits for Python where a call launches several short kernels, and has a gap
between any two; what is compared with ours is the second.

Two more use neither: a pair of events around a replay of a graph that calls each set once, on an
idle GPU, as a round of ours is, and around as many of nvbench's graphs in a row as last 0.3 s. So
it is seen whether a difference comes from what is launched, or from who times it. The first of them
is done once more by a submission itself, in the sandbox: it tells whether it comes from where.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from benchmarks.gpu import needs_gpu

if TYPE_CHECKING:
    from grader.report import Report

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "submissions" / "softmax" / "accepted"
GRAPHS = 4
GRAPH_US = 8000.0
"""A graph for nvbench lasts at least so long: its batch has the launch of each graph in it, and our
rounds have not, which are launched before their inputs are there."""
REPLAYS, ROW_US = 30, 300_000.0
"""Replays that are timed one by one, of which the median counts; and how long a row of them is."""
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
BATCH = "nv/batch/time/gpu/mean"
HEAD = """\
| file | case | calls | ours µs | do_bench | nvbench, one by one | nvbench, graphs | ours / graphs \
| one replay | replays in a row | one replay, in the sandbox |
|---|---|---|---|---|---|---|---|---|---|---|"""
INSIDE = """

import json as _json
import statistics as _statistics

import torch as _torch

_call, _calls, _loads = softmax, {}, _json.loads(LOADS)


def softmax(x, out):
    _call(x, out)
    case = f"{tuple(x.shape)} {x.dtype}"
    _calls[case] = _calls.get(case, 0) + 1
    if case in _loads and _calls[case] == 2:  # what compiles has compiled
        _torch.cuda.synchronize()
        print(f"REPLAY {_loads[case][0]} {_replay_us(x, _loads[case][1])}", flush=True)
        _torch.cuda.empty_cache()


def _replay_us(like, count):
    inputs = [_torch.randn(like.shape, device="cuda").to(like.dtype) for _ in range(count)]
    pairs = [(x, _torch.empty_like(x)) for x in inputs]
    for pair in pairs:
        _call(*pair)
    _torch.cuda.synchronize()
    graph, found = _torch.cuda.CUDAGraph(), []
    with _torch.cuda.graph(graph):
        for pair in pairs:
            _call(*pair)
    for _ in range(REPLAYS):
        before, after = (_torch.cuda.Event(enable_timing=True) for _ in range(2))
        _torch.cuda.synchronize()
        before.record()
        graph.replay()
        after.record()
        _torch.cuda.synchronize()
        found.append(before.elapsed_time(after) * 1e3 / count)
    return _statistics.median(found)
"""
"""What a submission does to time itself as `by_events` does: when it is called for the second time
on tensors of a benchmark's shape, with sets of its own, which it lets go."""

Entry = Callable[..., Any]
Arguments = list[tuple[Any, Any]]
Load = tuple[int, int]
"""How many argument sets there are, and how often a graph calls each."""


def entry(file: Path, name: str = "softmax") -> Entry:
    """A function of a file that we trust: it runs in this process."""
    spec = importlib.util.spec_from_file_location("timed", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Entry = getattr(module, name)
    return function


def _graded(file: Path, sandbox_name: str) -> Report:
    from grader.judge import grade
    from grader.problem import Problem
    from grader.sandbox import make_sandbox
    from grader.submission import Submission

    problem = Problem.load(ROOT / "problems" / "softmax")
    sandbox = make_sandbox(sandbox_name)
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    return grade(problem, submission, sandbox=sandbox, device="cuda")


def ours(file: Path, sandbox_name: str) -> dict[str, tuple[float, int]]:
    """Microseconds, and calls per round, by benchmark case of one full grading."""
    return {
        c.name: (c.time_us, c.calls_per_round)
        for c in _graded(file, sandbox_name).cases
        if c.kind == "benchmark" and c.time_us and c.calls_per_round
    }


def others(file: Path, loads: dict[str, Load]) -> dict[str, dict[str, float]]:
    """By case and timer, microseconds; each timer has a process of its own."""
    found: dict[str, dict[str, float]] = {}
    for timer in TIMERS:
        command = [sys.executable, "-m", "benchmarks.timers", "--one", timer]
        command += ["--loads", json.dumps(loads), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(f"{timer} failed: {(done.stderr or done.stdout)[-800:]}")
        for case, time_us in json.loads(done.stdout.strip().splitlines()[-1]).items():
            found.setdefault(case, {})[timer] = time_us
    return found


def inside(file: Path, sandbox_name: str, calls: dict[str, int]) -> dict[str, float]:
    """Microseconds by benchmark case that a submission finds by itself, in the sandbox."""
    loads = {}
    for name, params in cases().items():
        if name not in calls:
            continue
        shape = (params["rows"], params["cols"])
        loads[f"{shape} torch.{DTYPES[params['dtype']]}"] = (name, calls[name])
    text = INSIDE.replace("LOADS", repr(json.dumps(loads))).replace("REPLAYS", str(REPLAYS))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file.name
        path.write_text(file.read_text() + text)
        log = _graded(path, sandbox_name).log
    told = [line.split() for line in log.splitlines() if line.startswith("REPLAY ")]
    return {name: float(time_us) for _, name, time_us in told}


def cases() -> dict[str, dict[str, Any]]:
    """Parameters of the problem's GPU benchmark cases by name."""
    from grader.problem import Problem

    problem = Problem.load(ROOT / "problems" / "softmax")
    return {c.name: c.params for c in problem.cases("benchmark", "cuda")}


def argument_sets(params: dict[str, Any], count: int) -> Arguments:
    """So many pairs of input and output."""
    import torch

    dtype = getattr(torch, DTYPES[params["dtype"]])
    shape = (params["rows"], params["cols"])
    inputs = [torch.randn(shape, device="cuda").to(dtype) for _ in range(count)]
    return [(x, torch.empty_like(x)) for x in inputs]


def by_do_bench(function: Entry, loads: dict[str, Load]) -> dict[str, float]:
    """Microseconds by triton.testing.do_bench, its median. It calls with one set only."""
    import triton.testing

    times = {}
    for name, params in cases().items():
        x, out = argument_sets(params, 1)[0]
        median_ms = triton.testing.do_bench(partial(function, x, out), return_mode="median")
        times[name] = float(median_ms) * 1e3
    return times


def by_nvbench(function: Entry, loads: dict[str, Load], graphs: bool) -> dict[str, float]:
    """Microseconds by nvbench's batch measurement, its mean, over all sets in turn."""
    import cuda.bench as bench

    for name, params in cases().items():
        bench.register(_benchmark(name, params, function, loads[name], graphs))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nvbench.json"
        bench.run_all_benchmarks(["timers", "--json", str(path)])
        done = json.loads(path.read_text())["benchmarks"]
    times = {}
    for name, benchmark in zip(cases(), done, strict=True):
        summaries = {s["tag"]: s for s in benchmark["states"][0]["summaries"] or []}
        if BATCH not in summaries:
            raise RuntimeError(f"nvbench gave no {BATCH} but {sorted(summaries)}")
        launched = math.prod(loads[name]) if graphs else 1
        times[name] = float(summaries[BATCH]["data"][0]["value"]) * 1e6 / launched
    return times


def _benchmark(
    name: str, params: dict[str, Any], function: Entry, load: Load, graphs: bool
) -> Callable[[Any], None]:
    import torch

    count, turns = load

    def benchmark(state: Any) -> None:
        sets = argument_sets(params, count)
        stream = torch.cuda.ExternalStream(state.get_stream().addressof())
        with torch.cuda.stream(stream):
            for pair in sets:
                function(*pair)
        torch.cuda.synchronize()
        launch = _replay(function, sets * turns) if graphs else _in_turn(function, sets)

        def on_stream(_: Any) -> None:
            with torch.cuda.stream(stream):
                launch()

        state.exec(on_stream, batched=True)

    benchmark.__name__ = name
    return benchmark


def _replay(function: Entry, sets: Arguments) -> Callable[[], None]:
    """Launches graphs in turn, since one and the same waits for its own last launch to end."""
    turns = itertools.cycle([captured(function, sets) for _ in range(GRAPHS)])
    return lambda: next(turns).replay()


def captured(function: Entry, sets: Sequence[Sequence[Any]]) -> Any:
    """A CUDA graph that calls a function with each of these arguments, as it was called before."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in sets:
            function(*arguments)
    return graph


def by_events(function: Entry, loads: dict[str, Load], alone: bool) -> dict[str, float]:
    """Microseconds by a pair of events, around one replay or around many in a row."""
    import torch

    times = {}
    for name, params in cases().items():
        count, turns = loads[name]
        sets = argument_sets(params, count)
        for pair in sets:
            function(*pair)
        if alone:
            graph = captured(function, sets)
            times[name] = median([_timed(graph.replay, 1) for _ in range(REPLAYS)]) / count
        else:
            replay, launched = _replay(function, sets * turns), count * turns
            first_us = _timed(replay, GRAPHS)
            rows = math.ceil(ROW_US / first_us) * GRAPHS
            times[name] = _timed(replay, rows) / rows / launched
        del sets
        torch.cuda.empty_cache()
    return times


def _timed(launch: Callable[[], None], times: int) -> float:
    """Microseconds of so many launches in a row, on a GPU that has nothing else to do."""
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    for _ in range(times):
        launch()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) * 1e3


def _in_turn(function: Entry, sets: Arguments) -> Callable[[], None]:
    turn = 0

    def launch() -> None:
        nonlocal turn
        function(*sets[turn % len(sets)])
        turn += 1

    return launch


TIMERS: dict[str, Callable[[Entry, dict[str, Load]], dict[str, float]]] = {
    "do_bench": by_do_bench,
    "one by one": partial(by_nvbench, graphs=False),
    "graphs": partial(by_nvbench, graphs=True),
    "one replay": partial(by_events, alone=True),
    "in a row": partial(by_events, alone=False),
}


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--one", type=click.Choice(list(TIMERS)), help="Print the times of one timer only.")
@click.option("--loads", default="{}", help="With --one: sets and turns by case, as JSON.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, one: str | None, loads: str, files: tuple[Path, ...]) -> None:
    """Time the same kernels by several timers and print a table."""
    needs_gpu()
    chosen = files or (FOLDER / "triton_softmax.py", FOLDER / "torch_softmax.py")
    if one is not None:
        print(json.dumps(TIMERS[one](entry(chosen[0]), json.loads(loads))))
        return
    print(HEAD)
    for file in chosen:
        mine = ours(file, sandbox)
        theirs = others(
            file,
            {case: (calls, math.ceil(GRAPH_US / calls / us)) for case, (us, calls) in mine.items()},
        )
        sandboxed = inside(file, sandbox, {case: calls for case, (_, calls) in mine.items()})
        for case, (time_us, count) in mine.items():
            found = theirs[case]
            before, after = list(TIMERS)[:3], list(TIMERS)[3:]
            words = [file.name, case, str(count), f"{time_us:.2f}"]
            words += [f"{found[timer]:.2f}" for timer in before]
            words += [f"{time_us / found['graphs']:.4f}"]
            words += [f"{found[timer]:.2f}" for timer in after]
            words.append(f"{sandboxed[case]:.2f}" if case in sandboxed else "–")
            print(f"| {' | '.join(words)} |", flush=True)


if __name__ == "__main__":
    main()
