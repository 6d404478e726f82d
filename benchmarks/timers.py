"""The same kernel by three timers in one run: ours, triton.testing.do_bench, and NVIDIA's nvbench.

    python -m benchmarks.timers [--sandbox docker|process] [FILE]...

Needs a GPU, and the package `cuda-bench` for nvbench. FILE is an honest softmax submission; the
default is the Triton and the PyTorch one.

- Ours is the time of a full grading.
- `do_bench` reports its median. It clears L2 before each call and times the call with CUDA events.
- nvbench reports its batch time, over as many argument sets as our rounds have: of calls launched
  one by one, and of a CUDA graph that calls every set, repeated until it lasts some milliseconds.
  The first waits for Python where a call launches several short kernels, so ours is compared with
  the second.
- Plain CUDA events around replays in a row of a graph that calls each set once. They show whether a
  difference comes from the launches or from the timer.

Each timer runs in its own process for each case. In a process that has used more than a few streams
or graphs, as nvbench seems to, kernels follow each other with a longer gap until another process
has used the GPU (`benchmarks.kernel_gaps`). Our rounds begin with a context switch from the judge
to the runner. So nvbench times its graphs twice: alone, and beside another process that uses the
GPU for 0.1 ms now and then.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.gpu import require_gpu

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "submissions" / "softmax" / "accepted"
GRAPH_US = 8000.0
"""Least duration of a graph for nvbench. Its batch includes each graph's launch; our rounds are
launched before their inputs are there, and do not."""
ROWS, IN_A_ROW = 5, 30
"""Rows of replays, whose median counts, and replays in each."""
WORK_CYCLES, FIRST, ONE_IN = 200_000, 8, 64
"""Cycles of the other process's work (0.1 ms); beside each of the first launches; then beside one
launch in this many."""
TIMEOUT_S = "2"
"""nvbench's time limit in seconds. Beside another process its noise stays above its own bound."""
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
BATCH = "nv/batch/time/gpu/mean"
HEAD = """\
| file | case | calls | ours µs | do_bench | nvbench, one by one | nvbench, graphs | ours / graphs \
| nvbench, graphs, beside another process | ours / these | replays in a row |
|---|---|---|---|---|---|---|---|---|---|---|"""

Entry = Callable[..., Any]
Arguments = list[tuple[Any, Any]]
Load = tuple[int, int]
"""Number of argument sets, and calls of each in a graph."""


def entry(file: Path, name: str = "softmax") -> Entry:
    """A function of a trusted file, imported into this process."""
    spec = importlib.util.spec_from_file_location("timed", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Entry = getattr(module, name)
    return function


def ours(file: Path, sandbox_name: str) -> dict[str, tuple[float, int]]:
    """Microseconds, and calls per round, by benchmark case of one full grading."""
    from grader.judge import grade
    from grader.problem import Problem
    from grader.sandbox import make_sandbox
    from grader.submission import Submission

    problem = Problem.load(ROOT / "problems" / "softmax")
    sandbox = make_sandbox(sandbox_name)
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    report = grade(problem, submission, sandbox=sandbox, device="cuda")
    return {
        c.name: (c.time_us, c.calls_per_round)
        for c in report.cases
        if c.kind == "benchmark" and c.time_us and c.calls_per_round
    }


def alone(run: Callable[[], Any]) -> Any:
    """The result of `run` in a fork of this process, which has not used the GPU. Exits if the fork
    fails."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=lambda: theirs.send(run()))
    process.start()
    theirs.close()
    # Not the pipe's end of file: processes that the fork has started may hold it open.
    if ours in wait([ours, process.sentinel]):
        with suppress(EOFError):
            return ours.recv()
    process.join()
    explained = process.exitcode == 1  # it has printed why
    sys.exit(1 if explained else f"the timed process ended with status {process.exitcode}")


class OtherProcess:
    """Another process that uses the GPU for a moment on request. Create it before this process uses
    the GPU; it ends with this process."""

    def __init__(self) -> None:
        fork = multiprocessing.get_context("fork")
        self._requests, requests = fork.Pipe()
        fork.Process(target=self._serve, args=(requests,), daemon=True).start()
        requests.close()
        self._requests.recv()

    def use_gpu(self) -> None:
        """Start its work: whatever is launched now begins with a context switch."""
        self._requests.send(None)
        self._requests.recv()

    def _serve(self, requests: Any) -> None:
        import torch

        self._requests.close()
        torch.zeros(1, device="cuda")
        with suppress(EOFError):  # the other one has ended
            while True:
                torch.cuda._sleep(WORK_CYCLES)
                requests.send(None)
                torch.cuda.synchronize()
                requests.recv()


def cases() -> dict[str, dict[str, Any]]:
    """Parameters of the problem's GPU benchmark cases by name."""
    from grader.problem import Problem

    problem = Problem.load(ROOT / "problems" / "softmax")
    return {c.name: c.params for c in problem.cases("benchmark", "cuda")}


def argument_sets(params: dict[str, Any], count: int) -> Arguments:
    """`count` pairs of input and output."""
    import torch

    dtype = getattr(torch, DTYPES[params["dtype"]])
    shape = (params["rows"], params["cols"])
    inputs = [torch.randn(shape, device="cuda").to(dtype) for _ in range(count)]
    return [(x, torch.empty_like(x)) for x in inputs]


def by_do_bench(function: Entry, params: dict[str, Any], load: Load) -> float:
    """Median microseconds by triton.testing.do_bench, which uses one argument set."""
    import triton.testing

    x, out = argument_sets(params, 1)[0]
    median_ms = triton.testing.do_bench(partial(function, x, out), return_mode="median")
    return float(median_ms) * 1e3


def by_nvbench(
    function: Entry, params: dict[str, Any], load: Load, graphs: bool, beside: bool = False
) -> float:
    """Mean microseconds by nvbench's batch measurement over all sets, alone or `beside` another
    process."""
    other = OtherProcess() if beside else None
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nvbench prints tables
    import cuda.bench as bench

    bench.register(_benchmark(params, function, load, graphs, other))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nvbench.json"
        bench.run_all_benchmarks(["timers", "--timeout", TIMEOUT_S, "--json", str(path)])
        (done,) = json.loads(path.read_text())["benchmarks"]
    summaries = {s["tag"]: s for s in done["states"][0]["summaries"] or []}
    if BATCH not in summaries:
        raise RuntimeError(f"nvbench gave no {BATCH} but {sorted(summaries)}")
    launched = math.prod(load) if graphs else 1
    return float(summaries[BATCH]["data"][0]["value"]) * 1e6 / launched


def _benchmark(
    params: dict[str, Any], function: Entry, load: Load, graphs: bool, other: OtherProcess | None
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
        launch = captured(function, sets * turns).replay if graphs else _rotating(function, sets)
        launches = itertools.count()

        def on_stream(_: Any) -> None:
            number = next(launches)
            if other is not None and (number < FIRST or number % ONE_IN == 0):
                other.use_gpu()
            with torch.cuda.stream(stream):
                launch()

        state.exec(on_stream, batched=True)

    return benchmark


def captured(function: Entry, sets: Sequence[Sequence[Any]]) -> Any:
    """A CUDA graph of one call per argument tuple. Each call must have run before."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in sets:
            function(*arguments)
    return graph


def by_events(function: Entry, params: dict[str, Any], load: Load) -> float:
    """Microseconds by a pair of events around replays in a row of a graph that calls every set
    once."""
    count, _ = load
    sets = argument_sets(params, count)
    for pair in sets:
        function(*pair)
    replay = captured(function, sets).replay
    return median([timed_us(replay, IN_A_ROW) for _ in range(ROWS)]) / IN_A_ROW / count


def timed_us(launch: Callable[[], None], times: int) -> float:
    """Microseconds of `times` launches in a row on an idle GPU."""
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    for _ in range(times):
        launch()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after)) * 1e3


def _rotating(function: Entry, sets: Arguments) -> Callable[[], None]:
    turn = 0

    def launch() -> None:
        nonlocal turn
        function(*sets[turn % len(sets)])
        turn += 1

    return launch


Timer = Callable[[Entry, dict[str, Any], Load], float]
TIMERS: dict[str, Timer] = {
    "do_bench": by_do_bench,
    "one by one": partial(by_nvbench, graphs=False),
    "graphs": partial(by_nvbench, graphs=True),
    "beside": partial(by_nvbench, graphs=True, beside=True),
    "in a row": by_events,
}


def _timed(timer: Timer, file: Path, params: dict[str, Any], load: Load) -> float:
    return timer(entry(file), params, load)


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, files: tuple[Path, ...]) -> None:
    """Time the same kernels by several timers and print a table."""
    alone(require_gpu)
    import triton.testing  # noqa: F401 - takes seconds; forks have it

    print(HEAD, flush=True)
    for file in files or (FOLDER / "triton_softmax.py", FOLDER / "torch_softmax.py"):
        for case, (time_us, count) in alone(partial(ours, file, sandbox)).items():
            load = (count, math.ceil(GRAPH_US / count / time_us))
            found = {
                name: alone(partial(_timed, timer, file, cases()[case], load))
                for name, timer in TIMERS.items()
            }
            words = [file.name, case, str(count), f"{time_us:.2f}"]
            words += [f"{found[name]:.2f}" for name in ("do_bench", "one by one")]
            for name in ("graphs", "beside"):
                words += [f"{found[name]:.2f}", f"{time_us / found[name]:.4f}"]
            words.append(f"{found['in a row']:.2f}")
            print(f"| {' | '.join(words)} |", flush=True)


if __name__ == "__main__":
    main()
