"""`grade baseline`: measure what a problem's kernels are held against, and record it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Desk
from grader.cli.options import choose_device, device_option, find_problem, sandbox_option

if TYPE_CHECKING:
    from grader.judge.timing.baseline_store import BaselineFile, RecordedCeilings
    from grader.judge.timing.baselines import Baselines
    from grader.problem import Problem
    from grader.report import Report
    from grader.sandbox.base import Device


@dataclass(frozen=True)
class Expert:
    """One of our own kernels, graded."""

    name: str
    report: Report


@click.command()
@click.argument("problem")
@device_option
@sandbox_option
@click.pass_obj
def baseline(desk: Desk, problem: str, device: str, sandbox_name: str) -> int:
    """Measure the baselines of PROBLEM on this machine and record them.

    Grades our expert kernels from reference/PROBLEM, times every baseline and torch.compile, and
    writes reference/timings/GPU.json, where `grade practice` finds them. Exit status 0 when all was
    recorded; another one when an expert kernel was not accepted: then nothing is
    written.
    """
    from grader.cli.output.baseline_view import times_table
    from grader.cli.output.terminal import err, out, safe
    from grader.judge.timing.baseline_store import folder_of, load, save

    found = find_problem(problem)
    chosen = choose_device(desk, device)
    folder = folder_of(found)
    experts = []
    for expert in _grade_experts(desk, found, chosen, sandbox_name):
        verdict, reason = expert.report.verdict, expert.report.reason
        if verdict is None:
            err().print(safe(f"{expert.name} left out: {reason}", style="yellow"))
        elif verdict != "accepted":
            line = f"{expert.name} was {verdict}: {reason}; nothing recorded"
            err().print(safe(line, 400, "red"), soft_wrap=True)
            return 3 if verdict == "judge_error" else 1
        else:
            experts.append(expert)
    sticks = _measure(desk, found, chosen)
    old = load(folder, sticks.hardware)
    timings = _timings(found, chosen, sticks, experts, old)
    path = save(folder, timings)
    for note in sticks.notes:
        err().print(safe(note, 400, "yellow"), soft_wrap=True)
    console = out()
    console.print(times_table(timings.problems[found.name]))
    practice = "" if timings.ranked else "; a CPU's times are practice and not ranked"
    console.print(f"{found.name} on {timings.hardware}: {path}{practice}", soft_wrap=True)
    return 0


def expert_files(problem: Problem) -> list[Path]:
    """Our expert kernels of a problem, from the folder `reference` beside `problems`."""
    from grader.judge.timing.baseline_store import folder_of
    from grader.submission import LANGUAGES

    root = folder_of(problem).parent / problem.name
    return sorted(path for path in root.glob("*") if path.suffix in LANGUAGES)


def _grade_experts(
    desk: Desk, problem: Problem, device: Device, sandbox_name: str
) -> Iterator[Expert]:
    from grader.cli.commands.submit import Job, run

    for path in expert_files(problem):
        job = Job.prepare(desk, problem, path, device, sandbox_name)
        yield Expert(path.name, run(desk, job, show=True))


def _measure(desk: Desk, problem: Problem, device: Device) -> Baselines:
    from grader.cli.output.progress import watching

    with watching(show=True) as watcher:
        return desk.yardsticks(problem, device, watcher)


def _timings(
    problem: Problem,
    device: Device,
    sticks: Baselines,
    experts: list[Expert],
    old: BaselineFile | None,
) -> BaselineFile:
    """The record with this problem's part made anew."""
    from grader.judge.timing.baseline_store import BaselineFile, ProblemBaselines

    cases = {name: dict(times) for name, times in sticks.cases.items()}
    for expert in experts:
        for case in expert.report.cases:
            if case.time_us is not None and case.name in cases:
                cases[case.name][expert.name] = case.time_us
    times = ProblemBaselines(
        digest=problem.times_digest,
        environment=sticks.environment,
        experts=[expert.name for expert in experts],
        cases={
            name: {key: float(f"{us:.5g}") for key, us in row.items()}
            for name, row in cases.items()
        },
    )
    empty = BaselineFile(hardware=sticks.hardware, device=device, ranked=device == "cuda")
    return (old or empty).updated(problem.name, times, _ceilings(device, experts))


def _ceilings(device: Device, experts: list[Expert]) -> RecordedCeilings | None:
    """As the newest grading on the GPU measured them; a CPU's, which no grading does, as of now."""
    from grader.judge.timing.baseline_store import RecordedCeilings

    if device == "cpu":
        from grader.judge.gpu.environment import measure_cpu_ceilings

        measured = [asdict(measure_cpu_ceilings())]
    else:
        measured = [found for e in experts if (found := e.report.environment.get("ceilings"))]
    if not measured:
        return None
    return RecordedCeilings(**{name: float(f"{rate:.4g}") for name, rate in measured[-1].items()})
