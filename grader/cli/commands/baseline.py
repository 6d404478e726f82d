"""`grade baseline`: measure and record the baselines of a problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import LocalJob, run
from grader.cli.options import choose_device, device_option, find_problem, sandbox_option

if TYPE_CHECKING:
    from grader.judge.timing.baseline_store import BaselineFile, RecordedCeilings
    from grader.judge.timing.baselines import Baselines
    from grader.problem import Problem
    from grader.report import Report
    from grader.sandbox.base import Device


@dataclass(frozen=True)
class ExpertResult:
    """Report of one expert kernel."""

    name: str
    report: Report


@click.command()
@click.argument("problem")
@device_option
@sandbox_option
@click.option(
    "--record",
    is_flag=True,
    help="Record for the project, in reference/timings, instead of in your data directory.",
)
@click.pass_obj
def baseline(deps: Dependencies, problem: str, device: str, sandbox_name: str, record: bool) -> int:
    """Measure the baselines of PROBLEM on this machine and record them.

    Grades the expert kernels in reference/PROBLEM, times the problem's baselines and torch.compile,
    and writes GPU.json, which `grade practice` and `grade plot` compare with. Cases that
    torch.compile has not compiled after 40 s get no time of it. Ctrl-C keeps what was measured.
    Exit status: 0 if the times were recorded, 130 if Ctrl-C came first; if an expert kernel was not
    accepted, another status, and nothing is written.
    """
    from grader.cli.output.baseline_view import times_table
    from grader.cli.output.progress import show_progress
    from grader.cli.output.terminal import print_note, print_warning, stdout
    from grader.judge.timing.baseline_store import folder_of, load, locked, save, user_folder

    found = find_problem(problem, deps, device, sandbox_name)
    chosen = choose_device(deps, device)
    folder = folder_of(found) if record else user_folder()
    experts = []
    for expert in _grade_experts(deps, found, chosen, sandbox_name):
        verdict, reason = expert.report.verdict, expert.report.reason
        if verdict is None:
            print_warning(f"{expert.name} is left out: {reason}")
        elif verdict != "accepted":
            print_note(f"{expert.name} was {verdict}: {reason}; nothing was recorded", "red")
            return 3 if verdict == "judge_error" else 1
        else:
            experts.append(expert)
    with show_progress(True) as display:
        measured = deps.measure_baselines(found, chosen, display)
    with locked(folder):
        old = load(folder, measured.hardware)
        timings = _timings(found, chosen, measured, experts, old)
        path = save(folder, timings)
    for note in measured.notes:
        print_warning(note)
    console = stdout()
    console.print(times_table(timings.problems[found.name]))
    if measured.missing:
        print_warning(
            f"interrupted: not measured were {', '.join(measured.missing)}; their earlier times of "
            "this version of the problem, if any, are kept"
        )
    elif measured.interrupted:
        print_warning("interrupted: torch.compile was not measured for every case")
    practice = "" if timings.ranked else "; CPU times are practice and not ranked"
    console.print(f"recorded {found.name} on {timings.hardware}: {path}{practice}", soft_wrap=True)
    return 130 if measured.interrupted else 0


def expert_files(problem: Problem) -> list[Path]:
    """The expert kernels of a problem, from the folder `reference` beside `problems`."""
    from grader.judge.timing.baseline_store import folder_of
    from grader.submission import LANGUAGES

    root = folder_of(problem).parent / problem.name
    return sorted(path for path in root.glob("*") if path.suffix in LANGUAGES)


def _grade_experts(
    deps: Dependencies, problem: Problem, device: Device, sandbox_name: str
) -> Iterator[ExpertResult]:
    for path in expert_files(problem):
        job = LocalJob.load(deps, problem, path, device, sandbox_name)
        yield ExpertResult(path.name, run(deps, job, show=True))


def _timings(
    problem: Problem,
    device: Device,
    measured: Baselines,
    experts: list[ExpertResult],
    old: BaselineFile | None,
) -> BaselineFile:
    """The old record with this problem's times replaced."""
    from grader.judge.timing.baseline_store import BaselineFile, ProblemBaselines

    before = old.problems.get(problem.name) if old else None
    if before is None or before.digest != problem.times_digest:
        earlier: dict[str, dict[str, float]] = {}
    else:
        earlier = before.cases
    cases = {name: dict(earlier[name]) for name in measured.missing if name in earlier}
    cases |= {name: dict(times) for name, times in measured.cases.items()}
    for expert in experts:
        for case in expert.report.cases:
            if case.time_us is not None and case.name in cases:
                cases[case.name][expert.name] = case.time_us
    times = ProblemBaselines(
        digest=problem.times_digest,
        environment=measured.environment,
        experts=[expert.name for expert in experts],
        cases={
            name: {key: float(f"{us:.5g}") for key, us in row.items()}
            for name, row in cases.items()
        },
    )
    empty = BaselineFile(hardware=measured.hardware, device=device, ranked=device == "cuda")
    return (old or empty).updated(problem.name, times, _ceilings(device, experts))


def _ceilings(device: Device, experts: list[ExpertResult]) -> RecordedCeilings | None:
    """The ceilings that the last grading on the GPU measured; those of a CPU are measured here."""
    from grader.judge.timing.baseline_store import RecordedCeilings

    if device == "cpu":
        from grader.judge.gpu.environment import measure_cpu_ceilings

        measured = [asdict(measure_cpu_ceilings())]
    else:
        measured = [found for e in experts if (found := e.report.environment.get("ceilings"))]
    if not measured:
        return None
    return RecordedCeilings(**{name: float(f"{rate:.4g}") for name, rate in measured[-1].items()})
