"""The same kernel by three timers in one run: ours, triton.testing.do_bench, and NVIDIA's nvbench.

    python -m benchmarks.timers [--sandbox docker|process] [FILE]...

Needs a GPU, and the package `cuda-bench` for nvbench. FILE is an honest submission of the softmax
problem; by default the Triton and the PyTorch one. Ours is a full grading. `do_bench` is asked for
its median; it empties L2 before each call and times the call with a pair of events. nvbench is
asked for its batch time, over as many argument sets as a round of ours has: of calls launched one
by one, and of a CUDA graph that holds a call for every set, again and again until it lasts some
milliseconds. The first waits for Python where a call launches several short kernels, and has a gap
between any two; what is compared with ours is the second.

One more uses neither: a pair of events around replays in a row of a graph that calls each set once.
So it is seen whether a difference comes from what is launched, or from who times it.

Each timer has a process of its own for each case. In one that has used more than a few streams or
graphs, as nvbench seems to, each kernel begins later after the one before it, whoever times it,
until another process has had the GPU for a moment (`benchmarks.kernel_gaps`). Our rounds begin with the
GPU's change from the judge to the runner. So nvbench is asked twice for its graphs: as it is, and
with another process that has a little work now and then, 0.1 ms in half a second.
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

from benchmarks.gpu import needs_gpu

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "submissions" / "softmax" / "accepted"
GRAPH_US = 8000.0
"""A graph for nvbench lasts at least so long: its batch has the launch of each graph in it, and our
rounds have not, which are launched before their inputs are there."""
ROWS, IN_A_ROW = 5, 30
"""So many rows of replays, of which the median counts, and so many in each."""
WORK_CYCLES, FIRST, ONE_IN = 200_000, 8, 64
"""What another process works, 0.1 ms; beside so many first launches, and then one in so many."""
TIMEOUT_S = "2"
"""After so many seconds nvbench takes what it has: beside another process its times vary by more
than the bound that it waits for."""
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
BATCH = "nv/batch/time/gpu/mean"
HEAD = """\
| file | case | calls | ours µs | do_bench | nvbench, one by one | nvbench, graphs | ours / graphs \
| nvbench, graphs, beside another process | ours / these | replays in a row |
|---|---|---|---|---|---|---|---|---|---|---|"""

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
    """What comes of it in a fork of this process, which has not asked for the GPU. Ends the program
    where nothing does."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=lambda: theirs.send(run()))
    process.start()
    theirs.close()
    # The pipe's end does not tell: what the fork has begun may hold it open.
    if ours in wait([ours, process.sentinel]):
        with suppress(EOFError):
            return ours.recv()
    process.join()
    told = process.exitcode == 1  # it has said why
    sys.exit(1 if told else f"what was to be timed ended with status {process.exitcode}")


class Other:
    """Another process, with a little work for the GPU when it is asked to. Made by a process that
    has not asked for the GPU; ends with it."""

    def __init__(self) -> None:
        fork = multiprocessing.get_context("fork")
        self._asks, asked = fork.Pipe()
        fork.Process(target=self._serve, args=(asked,), daemon=True).start()
        asked.close()
        self._asks.recv()

    def works(self) -> None:
        """Have it work, from now on: who launches something now has the GPU change to him."""
        self._asks.send(None)
        self._asks.recv()

    def _serve(self, asked: Any) -> None:
        import torch

        self._asks.close()
        torch.zeros(1, device="cuda")
        with suppress(EOFError):  # the other one has ended
            while True:
                torch.cuda._sleep(WORK_CYCLES)
                asked.send(None)
                torch.cuda.synchronize()
                asked.recv()


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


def by_do_bench(function: Entry, params: dict[str, Any], load: Load) -> float:
    """Microseconds by triton.testing.do_bench, its median. It calls with one set only."""
    import triton.testing

    x, out = argument_sets(params, 1)[0]
    median_ms = triton.testing.do_bench(partial(function, x, out), return_mode="median")
    return float(median_ms) * 1e3


def by_nvbench(
    function: Entry, params: dict[str, Any], load: Load, graphs: bool, beside: bool = False
) -> float:
    """Microseconds by nvbench's batch measurement, its mean, over all sets in turn; `beside`
    another process or alone."""
    other = Other() if beside else None
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # it prints tables of its own
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
    params: dict[str, Any], function: Entry, load: Load, graphs: bool, other: Other | None
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
        launch = captured(function, sets * turns).replay if graphs else _in_turn(function, sets)
        launches = itertools.count()

        def on_stream(_: Any) -> None:
            number = next(launches)
            if other is not None and (number < FIRST or number % ONE_IN == 0):
                other.works()
            with torch.cuda.stream(stream):
                launch()

        state.exec(on_stream, batched=True)

    return benchmark


def captured(function: Entry, sets: Sequence[Sequence[Any]]) -> Any:
    """A CUDA graph that calls a function with each of these arguments, as it was called before."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in sets:
            function(*arguments)
    return graph


def by_events(function: Entry, params: dict[str, Any], load: Load) -> float:
    """Microseconds by a pair of events around replays in a row, of a graph that calls every set
    once."""
    count, _ = load
    sets = argument_sets(params, count)
    for pair in sets:
        function(*pair)
    replay = captured(function, sets).replay
    return median([timed_us(replay, IN_A_ROW) for _ in range(ROWS)]) / IN_A_ROW / count


def timed_us(launch: Callable[[], None], times: int) -> float:
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
    alone(needs_gpu)
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
