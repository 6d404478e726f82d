"""How many seconds pass from a file to its verdict, cold and warm, by stage?

    python -m benchmarks.verdict_latency [--sandbox docker] [--device cuda] [--runs 3] [--watch]
                                         FILE...

FILE lies below `submissions/<problem>/`. Each row is a full grading, with the report's stages in
seconds. Cold is `grade submit` from the shell, timed from outside, until it prints the verdict and
until the program has ended. Warm is a grading by a process that has graded the problem before, in a
pooled sandbox that has had `--settle` seconds to import torch and warm up.

With `--watch`: the seconds that `grade watch` takes from a save to its first line on whether the
file is right, for `--runs` saves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.gpu import require_gpu
from grader.judge import grade
from grader.judge.record import Device
from grader.problem import Problem
from grader.report import Report
from grader.sandbox import make_sandbox
from grader.sandbox.base import RunnerLimits, Sandbox
from grader.sandbox.pool import RunnerPool
from grader.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("sandbox_start", "baseline", "load", "test", "benchmark", "total")
COLUMNS = ("file", "", "verdict", "ranked", *STAGES, "from outside", "until exit")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def problem_of(file: Path) -> Problem:
    """The problem of an example submission, by its folder."""
    return Problem.load(ROOT / "problems" / file.resolve().parent.parent.name)


def grade_file(file: Path, sandbox: Sandbox, device: Device) -> tuple[Report, float]:
    """A full grading, and its seconds by this process's clock."""
    start = time.monotonic()
    problem = problem_of(file)
    submission = Submission.read(file, problem.spec.limits.source_bytes)
    report = grade(problem, submission, sandbox=sandbox, device=device)
    return report, time.monotonic() - start


def row(file: Path, how: str, report: Report, outside_s: float, exit_s: float | None = None) -> str:
    """A row of the table. Why a report does not rank goes to stderr."""
    if not report.ranked:
        print(*report.notes, sep="\n", file=sys.stderr)
    words = [file.name, how, str(report.verdict), "yes" if report.ranked else "no"]
    seconds = [*(report.stages_s.get(stage, 0.0) for stage in STAGES), outside_s, exit_s]
    words += ["" if value is None else f"{value:.2f}" for value in seconds]
    return f"| {' | '.join(words)} |"


def cold(file: Path, sandbox_name: str, device: Device) -> str:
    """The row of a grading from the shell. Raises ValueError if it prints no report."""
    options = ["--sandbox", sandbox_name, "--device", device, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        options += ["--db", f"sqlite:///{folder}/board.sqlite3"]
        name = f"problems/{problem_of(file).name}"
        command = [sys.executable, "-m", "grader.cli", "submit", name, str(file), *options]
        start = time.monotonic()
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as grading:
            assert grading.stdout is not None
            line = grading.stdout.readline()
            verdict_s = time.monotonic() - start
        exit_s = time.monotonic() - start
    return row(file, "cold", Report.model_validate_json(line), verdict_s, exit_s)


def warm(file: Path, sandbox: Sandbox, device: Device, settle_s: float, runs: int) -> None:
    """Print the rows of gradings in pooled sandboxes. The first is left out: it fills the judge's
    caches."""
    limits = RunnerLimits.of(problem_of(file).spec.limits)
    with RunnerPool(sandbox, limits, device) as pool:
        for number in range(runs + 1):
            time.sleep(settle_s)
            report, took_s = grade_file(file, pool, device)
            if number:
                print(row(file, "warm", report, took_s), flush=True)


def watched(file: Path, sandbox_name: str, device: Device, settle_s: float, runs: int) -> None:
    """Print the first line of `grade watch` on a file, when it is opened and after each save."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / file.name
        copy.write_bytes(file.read_bytes())
        options = ["--sandbox", sandbox_name, "--device", device]
        name = problem_of(file).name
        command = [sys.executable, "-m", "grader.cli", "watch", name, str(copy), *options]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        ) as watch:
            assert watch.stdout is not None
            lines = (line for line in watch.stdout if "after the save" in line or "no sand" in line)
            try:
                for number in range(runs + 1):
                    if number:
                        time.sleep(settle_s)
                        with copy.open("ab") as stream:
                            stream.write(b"\n")
                    line = next(lines, "it ended").strip()
                    print(f"{file.name}, {'saved' if number else 'opened'}: {line}", flush=True)
            finally:
                watch.terminate()


@click.command()
@click.option("--sandbox", type=click.Choice(["docker", "process"]), default="docker")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda")
@click.option("--runs", default=3, show_default=True, help="Warm gradings of each file.")
@click.option("--settle", default=10.0, show_default=True, help="Seconds a sandbox has to warm up.")
@click.option("--watch", is_flag=True, help="Time the first line after a save instead.")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(
    sandbox: str,
    device: Device,
    runs: int,
    settle: float,
    watch: bool,
    files: tuple[Path, ...],
) -> None:
    """Time verdicts."""
    if device == "cuda":
        require_gpu()
    if watch:
        for file in files:
            watched(file.resolve(), sandbox, device, settle, runs)
        return
    print(HEAD)
    for file in files:
        print(cold(file.resolve(), sandbox, device), flush=True)
        warm(file, make_sandbox(sandbox), device, settle, runs)


if __name__ == "__main__":
    main()
