"""How much of a grading is the judge's own work on the GPU, and which kernels is it?

    python -m benchmarks.gpu_busy [--sandbox process] FILE

FILE lies below `submissions/<problem>/`. Its tests pass in one warm sandbox, and its benchmarks run
in others, as in a batch: three times without looking, and once with CUPTI watching. Prints the
seconds of the benchmarks, how long kernels and copies of the judge's process ran, together, and the
largest of them. Where they take less than the benchmarks, the judge or the submission is waited
for.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

import click
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu import require_gpu
from benchmarks.judge_profile import tested
from benchmarks.verdict_latency import problem_of
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits
from grader.sandbox.pool import RunnerPool

LISTED = 25


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--settle", default=8.0, show_default=True, help="Seconds a sandbox has to warm up.")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
def main(sandbox: str, settle: float, file: Path) -> None:
    """Print where the GPU's time goes."""
    require_gpu()
    limits = RunnerLimits.of(problem_of(file).spec.limits)
    pool = RunnerPool(make_sandbox(sandbox), limits, "cuda", 3)
    with pool, tempfile.TemporaryDirectory() as folder:
        timed = tested(file, pool, "cuda", Path(folder) / "kernels")
        for _ in range(3):
            time.sleep(settle)
            report, took_s = timed()
            print(f"{file.name}: {report.verdict}, {took_s:.2f} s, {report.stages_s}")
        time.sleep(settle)
        with profile(activities=[ProfilerActivity.CUDA]) as watched:
            report, took_s = timed()
    print(f"watched: {took_s:.2f} s, {report.stages_s}")
    busy_us: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for event in watched.events():
        busy_us[event.name] += event.device_time_total
        times[event.name] += 1
    print(f"the judge's kernels and copies: {busy_us.total() / 1e3:.0f} ms")
    for name, total_us in busy_us.most_common(LISTED):
        print(f"{total_us / 1e3:8.1f} ms {times[name]:6d} {name[:110]}")


if __name__ == "__main__":
    main()
