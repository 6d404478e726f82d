"""Verify every problem in full: its check, its examples, and the times of its baselines.

    python -m scripts.verify_catalogue OUT [--share 1/4] [--for-s 540] [--only NAME]...
        [--step NAME]... [--tests-only --processes 8]

For each problem it runs `grade verify --no-examples`, `scripts.grade_corpus` for its examples and,
on a GPU, for its experts, and `grade baseline --record`, and writes what they print to
OUT/<problem>.<step>.log. A step that has passed is not run again, so that a run can be continued;
with --share 2/4, each of four machines takes a quarter. After --for-s seconds no step is begun.
With --tests-only nothing is timed, and several --processes can share a GPU. Exit status: 0 if all
steps have passed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from grader.sandbox import Device
from scripts.workers import shared

ROOT = Path(__file__).resolve().parent.parent
PASSED = "passed"
"""The last line of the log of a step that need not be run again."""


@dataclass(frozen=True)
class Step:
    """One command for one problem."""

    problem: str
    name: str
    command: list[str]

    def log(self, out: Path) -> Path:
        """Where its output is kept."""
        return out / f"{self.problem}.{self.name}.log"

    def has_passed(self, out: Path) -> bool:
        """Whether an earlier run has seen it pass."""
        log = self.log(out)
        return log.exists() and log.read_text().splitlines()[-1:] == [PASSED]

    def run(self, out: Path) -> bool:
        """Run it; whether it passed."""
        with self.log(out).open("w") as log:
            command = [sys.executable, "-m", *self.command]
            done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            log.write(f"{PASSED if done.returncode == 0 else f'failed: {done.returncode}'}\n")
        return done.returncode == 0


def steps(device: Device, sandbox: str, tests_only: bool = False) -> Iterator[Step]:
    """All steps, the checks of all problems first."""
    names = sorted(path.parent.name for path in ROOT.glob("problems/*/problem.yaml"))
    options = ["--device", device, "--sandbox", sandbox] + ["--tests-only"] * tests_only
    for name in names:
        command = ["grader.cli", "verify", name, "--no-examples", "--device", device]
        yield Step(name, "check", command)
    for name in names if device == "cuda" else ():
        only = ["--experts", "--only", f"reference/{name}/"]
        yield Step(name, "experts", ["scripts.grade_corpus", *only, *options])
    for name in names:
        only = ["--only", f"submissions/{name}/"]
        yield Step(name, "examples", ["scripts.grade_corpus", *only, *options])
    for name in names if device == "cuda" and not tests_only else ():
        yield Step(name, "times", ["grader.cli", "baseline", name, "--record"])


@click.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@click.option(
    "--sandbox", type=click.Choice(["docker", "process"]), default="process", show_default=True
)
@click.option("--share", default="1/1", show_default=True, help="Which part of the work.")
@click.option("--for-s", type=float, default=float("inf"), help="Seconds after which to stop.")
@click.option("--only", multiple=True, help="Only these problems.")
@click.option("--step", "names", multiple=True, help="Only these steps: check, experts, …")
@click.option("--tests-only", is_flag=True, help="Time nothing.")
@click.option("--processes", default=1, show_default=True, help="Steps at the same time.")
def main(
    out: Path,
    device: Device,
    sandbox: str,
    share: str,
    for_s: float,
    only: tuple[str, ...],
    names: tuple[str, ...],
    tests_only: bool,
    processes: int,
) -> None:
    """Run what has not passed yet, and print one line per step."""
    out.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + for_s
    every = [
        step
        for step in steps(device, sandbox, tests_only)
        if (not only or step.problem in only) and (not names or step.name in names)
    ]

    def run(step: Step) -> bool:
        name = f"{step.problem} {step.name}"
        if step.has_passed(out):
            print(f"✔ {name} (earlier)", flush=True)
            return True
        if time.monotonic() >= end_s:
            return False
        start = time.monotonic()
        passed = step.run(out)
        see = "" if passed else f"; see {step.log(out)}"
        took_s = time.monotonic() - start
        print(f"{'✔' if passed else '✘'} {name}, {took_s:.0f} s{see}", flush=True)
        return passed

    with ThreadPoolExecutor(processes) as threads:
        left = sum(not passed for passed in threads.map(run, shared(every, share)))
    print(f"{left} steps are left" if left else "all steps have passed")
    sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
