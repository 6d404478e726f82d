"""How much longer does a timing take for what runs beside it: sandboxes that start, memory, cores?

    python -m benchmarks.beside_timing [--times 5] [--each-s 1.25] [--only TEXT]... FILE

FILE lies below `submissions/<problem>/`. Its tests pass once; then its benchmarks run `--times`
times beside each neighbour, a process that does one thing every `--each-s` seconds, in sandboxes
that were ready before, so that nothing else starts meanwhile. Prints a Markdown table of medians.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Literal

import click

from benchmarks.batch_rate import FOLDER, RIGHT, unseen
from benchmarks.gpu import require_gpu
from benchmarks.start_cost import LIMITS, READY_S
from benchmarks.verdict_latency import problem_of
from grader.judge import grade
from grader.judge.compile_ahead import compile_ahead
from grader.report import PassedTests, Verdict
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerDevice, RunnerLimits
from grader.sandbox.pool import LARGE, RunnerPool
from grader.submission import Submission
from grader.wire import send_request

SETTLE_S = 10.0
"""Until sandboxes are ready, and neighbours at work."""
MEMORY_BYTES = 1 << 30
"""What the neighbour that takes memory takes each time."""
CORES = 12
"""Those that the neighbour that spins keeps busy."""
_held: list[bytearray] = []


def nothing() -> None:
    """Do nothing."""


def start(
    device: RunnerDevice, opens: bool = False, sandbox: Literal["docker", "process"] = "docker"
) -> None:
    """Start a sandbox, and stop it once it has loaded what it needs."""
    with make_sandbox(sandbox).start(LIMITS, device) as runner:
        if opens:
            send_request(runner.channel, {"kind": "open_device"})
        time.sleep(READY_S)


def compile_one() -> None:
    """Compile a Triton file in a sandbox without a GPU, for all of softmax's cases."""
    path = FOLDER / RIGHT["python"]
    source = unseen(path.read_text(), time.monotonic_ns(), "python")
    submission = Submission(path.name, "python", source.encode())
    with tempfile.TemporaryDirectory() as folder:
        compile_ahead(
            problem_of(path),
            submission,
            sandbox=make_sandbox("docker"),
            device="cuda",
            kernels=Path(folder) / "kernels",
        )


def take_memory() -> None:
    """Take memory, and keep it."""
    _held.append(bytearray(MEMORY_BYTES))
    _held[-1][:: 1 << 12] = b"\x01" * (MEMORY_BYTES >> 12)


def spin() -> None:
    """Keep one core busy."""
    while True:
        pass


NEIGHBOURS: dict[str, Callable[[], None]] = {
    "nothing": nothing,
    "sandboxes that only compile": lambda: start("none"),
    "sandboxes that load Triton's compiler": lambda: start("cuda"),
    "the same as processes": lambda: start("cuda", sandbox="process"),
    "sandboxes that open the GPU, too": lambda: start("cuda", opens=True),
    "Triton files that compile": compile_one,
    "a gigabyte of memory more": take_memory,
    f"{CORES} busy cores": spin,
    "nothing again": nothing,
}


def act(name: str, each_s: float) -> None:
    """Be a neighbour, until the process is ended. It ends by itself when one of its acts fails."""
    run = NEIGHBOURS[name]
    if run is spin:
        for _ in range(CORES):
            multiprocessing.Process(target=spin).start()
        run = nothing
    with ThreadPoolExecutor(32) as threads:
        acts: list[Future[None]] = []
        while True:
            acts.append(threads.submit(run))
            time.sleep(each_s)
            for one in acts:
                if one.done() and (error := one.exception()):
                    traceback.print_exception(error)
                    os._exit(1)  # the others may go on for long


@click.command()
@click.option("--times", type=click.IntRange(1, LARGE - 1), default=5, show_default=True)
@click.option("--each-s", default=1.25, show_default=True)
@click.option("--only", multiple=True, help="Neighbours whose names contain this.")
@click.option("--neighbour", type=click.Choice(list(NEIGHBOURS)), hidden=True)
@click.argument("file", type=click.Path(exists=True, path_type=Path))
def main(
    times: int, each_s: float, only: tuple[str, ...], neighbour: str | None, file: Path
) -> None:
    """Time the file beside each neighbour."""
    if neighbour is not None:
        act(neighbour, each_s)
    require_gpu()
    problem = problem_of(file)
    limits = RunnerLimits.of(problem.spec.limits)
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    click.echo(
        "| beside | benchmarks, s | most | whole, s | `round_cost_us` |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        options: Any = {"device": "cuda", "kernels": Path(folder) / "kernels"}
        tests = grade(
            problem, submission, sandbox=make_sandbox("docker"), benchmarks=False, **options
        )
        passed = PassedTests.of(tests)
        for name in NEIGHBOURS:
            if only and not any(text in name for text in only):
                continue
            with RunnerPool(make_sandbox("docker"), limits, "cuda", times, refill=False) as pool:
                command = [sys.executable, "-m", "benchmarks.beside_timing", "--neighbour", name]
                command += ["--each-s", str(each_s), str(file)]
                beside = subprocess.Popen(command, start_new_session=True)
                try:
                    time.sleep(SETTLE_S)
                    made = [
                        grade(problem, submission, sandbox=pool, passed=passed, **options)
                        for _ in range(times)
                    ]
                    if beside.poll() is not None:
                        raise click.ClickException(f"the neighbour '{name}' has failed")
                    if wrong := [one.reason for one in made if one.verdict is not Verdict.ACCEPTED]:
                        raise click.ClickException(f"beside '{name}': {wrong[0]}")
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(beside.pid, signal.SIGKILL)  # its sandboxes end with it
                    beside.wait()
            own_s = [report.stages_s["benchmark"] for report in made]
            whole_s = median(report.stages_s["total"] for report in made)
            cost_us = median(report.environment["round_cost_us"] for report in made)
            cells = f"{median(own_s):.2f} | {max(own_s):.2f} | {whole_s:.2f} | {cost_us:.0f}"
            click.echo(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
