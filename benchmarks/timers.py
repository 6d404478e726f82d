"""The same kernel by three timers in one run: ours, triton.testing.do_bench, and NVIDIA's nvbench.

    python -m benchmarks.timers [--sandbox docker|process] [FILE]...

Needs a GPU, and the package `cuda-bench` for nvbench. FILE is an honest submission of the softmax
problem; by default the Triton and the PyTorch one. Ours is a full grading. `do_bench` is asked for
its median; it empties L2 before each call and times the call with a pair of events. nvbench is
asked for its batch time: many calls in a row, here over as many argument sets as keep L2 cold.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "submissions" / "softmax" / "accepted"
SETS = 16
BATCH = "nv/batch/time/gpu/mean"
HEAD = """\
| file | case | ours µs | do_bench µs | nvbench batch µs | ours / nvbench |
|---|---|---|---|---|---|"""


def entry(file: Path) -> Callable[..., Any]:
    """The `softmax` function of a file that we trust: it runs in this process."""
    spec = importlib.util.spec_from_file_location("timed", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = module.softmax
    return function


def ours(file: Path, sandbox_name: str) -> dict[str, float]:
    """Microseconds per benchmark case of one full grading."""
    from grader.judge import grade
    from grader.problem import Problem
    from grader.sandbox.docker import DockerSandbox
    from grader.sandbox.process import ProcessSandbox
    from grader.submission import Submission

    problem = Problem.load(ROOT / "problems" / "softmax")
    sandbox = DockerSandbox() if sandbox_name == "docker" else ProcessSandbox()
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    report = grade(problem, submission, sandbox=sandbox, device="cuda")
    return {c.name: c.time_us for c in report.cases if c.kind == "benchmark" and c.time_us}


def others(file: Path) -> dict[str, tuple[float, float]]:
    """By case, microseconds of do_bench and of nvbench, from a process of their own each."""
    found = {}
    for case in cases():
        times = []
        for timer in ("do_bench", "nvbench"):
            command = [sys.executable, "-m", "benchmarks.timers", "--one", timer, case, str(file)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
            last = done.stdout.strip().splitlines()[-1:] or [""]
            try:
                times.append(float(last[0]))
            except ValueError:
                print(f"{timer} on {case}: {(done.stderr or done.stdout)[-400:]}", file=sys.stderr)
                times.append(float("nan"))
        found[case] = (times[0], times[1])
    return found


def cases() -> dict[str, dict[str, Any]]:
    """Parameters of the problem's GPU benchmark cases by name."""
    from grader.problem import Problem

    problem = Problem.load(ROOT / "problems" / "softmax")
    return {c.name: c.params for c in problem.cases("benchmark", "cuda")}


def argument_sets(params: dict[str, Any]) -> list[tuple[Any, Any]]:
    """As many pairs of input and output as keep L2 cold."""
    import torch

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[params["dtype"]]
    shape = (params["rows"], params["cols"])
    inputs = [torch.randn(shape, device="cuda").to(dtype) for _ in range(SETS)]
    return [(x, torch.empty_like(x)) for x in inputs]


def by_do_bench(function: Callable[..., Any], sets: list[tuple[Any, Any]]) -> float:
    """Microseconds by triton.testing.do_bench, its median."""
    import triton.testing

    x, out = sets[0]
    return float(triton.testing.do_bench(lambda: function(x, out), return_mode="median")) * 1e3


def by_nvbench(function: Callable[..., Any], sets: list[tuple[Any, Any]]) -> float:
    """Microseconds by nvbench's batch measurement, its mean, over all sets in turn."""
    import cuda.bench as bench
    import torch

    turn = 0

    def softmax(state: Any) -> None:
        stream = torch.cuda.ExternalStream(state.get_stream().addressof())

        def launch(_: Any) -> None:
            nonlocal turn
            with torch.cuda.stream(stream):
                function(*sets[turn % len(sets)])
            turn += 1

        launch(None)
        torch.cuda.synchronize()
        state.exec(launch, batched=True)

    bench.register(softmax)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nvbench.json"
        bench.run_all_benchmarks(["timers", "--json", str(path)])
        state = json.loads(path.read_text())["benchmarks"][0]["states"][0]
    summaries = {s["tag"]: s for s in state["summaries"] or []}
    if BATCH not in summaries:
        raise RuntimeError(f"nvbench gave no {BATCH} but {sorted(summaries)}")
    return float(summaries[BATCH]["data"][0]["value"]) * 1e6


TIMERS = {"do_bench": by_do_bench, "nvbench": by_nvbench}


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--one", nargs=2, help="Print one time: TIMER CASE, for the given file.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
def main(sandbox: str, one: tuple[str, str] | None, files: tuple[Path, ...]) -> None:
    """Time the same kernels by three timers and print a table."""
    chosen = files or (FOLDER / "triton_softmax.py", FOLDER / "torch_softmax.py")
    if one is not None:
        timer, case = one
        print(TIMERS[timer](entry(chosen[0]), argument_sets(cases()[case])))
        return
    print(HEAD)
    for file in chosen:
        mine, theirs = ours(file, sandbox), others(file)
        for case, time_us in mine.items():
            do_bench_us, nvbench_us = theirs[case]
            print(
                f"| {file.name} | {case} | {time_us:.2f} | {do_bench_us:.2f} | {nvbench_us:.2f} "
                f"| {time_us / nvbench_us:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
