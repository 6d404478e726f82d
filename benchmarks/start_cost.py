"""What does it take to start a sandbox, in seconds and in seconds of a core?

    python -m benchmarks.start_cost [--device cuda] [--sandbox docker] [--count 3]

Prints Markdown: the steps of a runner, in its environment but in no sandbox, with NumPy's threads
as runners have them and as they are by default; and whole sandboxes, from their start to their end.
For these the processor time of the machine is counted, so nothing else may run on it. Medians.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Literal

import click

from grader.sandbox import host, make_sandbox
from grader.sandbox.base import RunnerDevice, RunnerLimits
from grader.wire import send_request

STEPS = """
import gc, json, resource, sys, time
taken = {}
def step(name, run):
    start_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = run()
    core_s = 0.0
    for was, who in ((before, resource.RUSAGE_SELF), (children, resource.RUSAGE_CHILDREN)):
        now = resource.getrusage(who)
        core_s += now.ru_utime + now.ru_stime - was.ru_utime - was.ru_stime
    taken[name] = time.monotonic() - start_s, core_s
    return made
gc.disable()
serve = step("import torch", lambda: __import__("grader.runner.serve", fromlist=["Server"]))
gc.enable()
if sys.argv[1] == "cuda":
    server = serve.Server("cuda")
    step("load Triton's compiler", server.load_compiler)
    step("open the GPU", lambda: server.init_device(triton=True))
    server.precompiler.end()
print(json.dumps(taken))
"""
LIMITS = RunnerLimits(memory_bytes=32 << 30, scratch_bytes=1 << 30, output_bytes=1 << 20, pids=512)
SPINNING = {"OPENBLAS_THREAD_TIMEOUT": "26"}
"""OpenBLAS's default: threads that wait for work spin for 2^26 cycles."""
READY_S = 8.0
"""A runner has done its preparations by then."""


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--count", default=3, show_default=True)
def main(device: Literal["cpu", "cuda"], sandbox: Literal["docker", "process"], count: int) -> None:
    """Print both tables."""
    click.echo("| step | NumPy's threads | seconds | of a core |\n|---|---|---|---|")
    for threads, changed in (("sleep", {}), ("spin", SPINNING)):
        runs = [_steps(device, changed) for _ in range(count + 1)][1:]  # the first reads the disk
        for step in runs[0]:
            took_s, core_s = (median(run[step][at] for run in runs) for at in range(2))
            click.echo(f"| {step} | {threads} | {took_s:.2f} | {core_s:.2f} |")
    click.echo("\n| sandbox | until it is connected, s | its end, s | of a core, s |")
    click.echo("|---|---|---|---|")
    kinds: tuple[RunnerDevice, ...] = ("none", device)
    for kind in kinds:
        what = "only compiles" if kind == "none" else f"runner, {kind}"
        starts = [_sandbox(sandbox, kind) for _ in range(count + 1)][1:]
        cells = (f"{median(column):.2f}" for column in zip(*starts, strict=True))
        click.echo(f"| {what} | {' | '.join(cells)} |")


def _steps(device: Literal["cpu", "cuda"], changed: dict[str, str]) -> dict[str, list[float]]:
    """Seconds, and seconds of a core, by step, of one new process."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tmp").mkdir()
        environment = host.runner_environment(Path(folder), Path(folder), device) | changed
        command = [sys.executable, "-s", "-c", STEPS, device]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        steps: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
        return steps


def _sandbox(name: Literal["docker", "process"], kind: RunnerDevice) -> tuple[float, float, float]:
    """Seconds to connect and to stop, and seconds of a core from the start to the end."""
    before_s, start_s = _machine_s(), time.monotonic()
    runner = make_sandbox(name).start(LIMITS, kind)
    connected_s = time.monotonic() - start_s
    if kind == "cuda":
        send_request(runner.channel, {"kind": "open_device"})
    time.sleep(READY_S)
    start_s = time.monotonic()
    runner.stop()
    stopped_s = time.monotonic() - start_s
    time.sleep(0.5)
    return connected_s, stopped_s, _machine_s() - before_s


def _machine_s() -> float:
    """Seconds of a core that the machine has worked since it started."""
    user, nice, system, _idle, _wait, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
