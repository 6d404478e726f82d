"""`grade plot`: times, rates and a roofline as an image."""

from __future__ import annotations

import logging
import tempfile
from contextlib import closing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grader.cli.dependencies import Dependencies
from grader.cli.local_grading import LocalJob, exit_status, run
from grader.cli.options import (
    check_writable,
    choose_device,
    db_option,
    device_option,
    find_problem,
    not_writable,
    sandbox_option,
)

if TYPE_CHECKING:
    from grader.cli.plotting.plot_style import PlotData, Roofline, TimingSeries
    from grader.judge.timing.baseline_store import RecordedBaselines
    from grader.problem import Problem
    from grader.report import Report

MOST_SUBMISSIONS = 6
"""Files or results in one plot: the number of colours that everyone can tell apart."""
NEWEST = 200
"""Results of a CPU among which the newest of each file are looked for."""
EXPERT = "expert "
NAME_CHARS = 40


@click.command()
@click.argument("problem")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Image to write, .png or .svg [default: PROBLEM.png].",
)
@device_option
@sandbox_option
@db_option
@click.pass_obj
def plot(
    deps: Dependencies,
    problem: str,
    files: tuple[Path, ...],
    out: Path | None,
    device: str,
    sandbox_name: str,
    db: str | None,
) -> int:
    """Plot how fast FILES are for PROBLEM: time and rate over size, and a roofline.

    Needs matplotlib: pip install '.[plot]'

    FILES are graded as by `grade practice --full`. Without FILES, this device's results on the
    board are plotted, with the baselines recorded on it; --device chooses the results and times of
    another machine, too. Exit status 1 if a file is not accepted; the other files are plotted
    anyway.
    """
    from grader.cli.output.terminal import print_note

    found = find_problem(problem, deps, device, sandbox_name)
    path = _check_output(out or Path(f"{found.name}.png"))
    if len(files) > MOST_SUBMISSIONS:
        raise click.UsageError(f"a plot takes {MOST_SUBMISSIONS} files at most, not {len(files)}")
    status = 0
    if files:
        reports, status = _grade_files(deps, found, files, device, sandbox_name)
        if not reports:
            return status
    else:
        reports = _board_results(deps, found, device, db)
    data = _plot_data(found, reports, _record(deps, found, reports, device), graded=bool(files))
    if data is None:
        raise click.UsageError(_nothing_to_plot(deps, found, device))
    _write(data, path)
    print_note(f"wrote {path}", "green")
    return status


def _check_output(out: Path) -> Path:
    """Check before the grading that the plot can be written. Raises click.UsageError."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it logs its font cache
    if find_spec("matplotlib") is None:
        raise click.UsageError("plots need matplotlib; pip install '.[plot]'")
    if out.suffix not in (".png", ".svg"):
        raise click.UsageError(f"--out {out}: the name must end in .png or .svg")
    check_writable(out)
    if out.is_dir():
        raise click.UsageError(f"--out {out} is a folder; choose a file in it")
    return out


# Collecting reports and recorded times -----------------------------------------------------------


def _grade_files(
    deps: Dependencies, problem: Problem, files: tuple[Path, ...], device: str, sandbox_name: str
) -> tuple[dict[str, Report], int]:
    """The reports of the accepted files by name, and the first exit status that is not 0."""
    from grader.cli.output.terminal import print_warning

    jobs = [LocalJob.load(deps, problem, file, device, sandbox_name) for file in files]
    same_name = len({file.name for file in files}) < len(files)
    names = [str(file) if same_name else file.name for file in files]
    reports: dict[str, Report] = {}
    status = 0
    for job, name in zip(jobs, names, strict=True):
        report = run(deps, job, show=True)
        if report.verdict == "accepted" and _times_us(report):
            reports[name] = report
        else:
            word = (report.verdict or "no verdict").replace("_", " ")
            print_warning(f"{name} is not plotted: {word}, {report.reason}")
            status = status or exit_status(report)
    return reports, status


def _board_results(
    deps: Dependencies, problem: Problem, device: str, db: str | None
) -> dict[str, Report]:
    """The results on the board to plot. Of a GPU, each user's best; of a CPU, where none rank, the
    newest of each file."""
    from grader.board import BoardError
    from grader.cli.output.terminal import print_note

    try:
        board = deps.board(db)
    except BoardError:
        if db is not None:
            raise
        return {}
    with closing(board):
        if _kind(deps, device) == "cpu":
            newest = [one.report for one in board.results(problem.name, most=NEWEST)]
            found: dict[str, Report] = {}
            for report in newest:
                if _is_plotted_on_cpu(problem, report):
                    found.setdefault(report.submission_name, report)
            return dict(list(found.items())[:MOST_SUBMISSIONS])
        names = board.gpus(problem.digest)
        if own := _own_gpus(device):
            names = [name for name in names if name in own]
        gpu, *others = names or [""]
        if others:
            print_note(f"plotting {gpu}; the board also has {', '.join(others)}", "dim")
        entries = board.leaderboard(problem.digest, gpu)[:MOST_SUBMISSIONS]
        return {entry.user: board.result(entry.result_id).report for entry in entries}


def _is_plotted_on_cpu(problem: Problem, report: Report) -> bool:
    """Whether a result is of this problem's version, accepted, and timed on this CPU."""
    from grader.judge.timing.baseline_store import processor_name

    return (
        report.device == "cpu"
        and report.verdict == "accepted"
        and report.problem_digest == problem.digest
        and report.environment.get("processor", processor_name()) == processor_name()
        and bool(_times_us(report))
    )


def _kind(deps: Dependencies, device: str) -> str:
    return choose_device(deps, device) if device == "auto" else device


def _own_gpus(device: str) -> list[str]:
    """The names of this machine's GPUs, for ``auto``; empty for the results of any machine."""
    from grader.sandbox.gpu_info import driver

    return [gpu.name for gpu in driver().gpus] if device == "auto" else []


def _nothing_to_plot(deps: Dependencies, problem: Problem, device: str) -> str:
    from grader.judge.timing.baseline_store import processor_name

    where = f"a {_kind(deps, device)[:4].upper()}".replace("CUDA", "GPU")
    if device == "auto":
        names = _own_gpus(device) or [processor_name() if "CPU" in where else "its GPU"]
        where = f"this machine ({', '.join(names)})"
    others = ", or --device cuda for the times of GPUs" if _kind(deps, device) == "cpu" else ""
    return (
        f"there are no results and no recorded times for this version of {problem.name} on {where};"
        f" give files to grade{others}"
    )


def _record(
    deps: Dependencies, problem: Problem, reports: dict[str, Report], device: str
) -> RecordedBaselines | None:
    """The recorded times of the reports' hardware; without reports, of this machine's, or the first
    of the kind that --device names.

    A record that cannot be read is a warning only.
    """
    from grader.cli.output.terminal import print_warning
    from grader.judge.timing.baseline_store import load_recorded, processor_name
    from grader.problem import ProblemError

    kind = _kind(deps, device)
    own = [processor_name()] if (device, kind) == ("auto", "cpu") else _own_gpus(device)
    wanted = {_hardware(report) for report in reports.values()} or set(own)
    try:
        records = load_recorded(problem)
    except ProblemError as error:
        print_warning(f"no recorded times: {error}")
        return None
    for one in records:
        if one.hardware in wanted if wanted else one.device == kind:
            return one
    return None


def _hardware(report: Report) -> str:
    from grader.judge.timing.baseline_store import processor_name

    return report.gpu or processor_name()


# Building the plot -------------------------------------------------------------------------------


def _plot_data(
    problem: Problem, reports: dict[str, Report], record: RecordedBaselines | None, graded: bool
) -> PlotData | None:
    """What to plot; None if there are no times.

    graded: whether the reports were made by this command, on this machine.
    """
    from grader.cli.plotting.plot_style import CaseCost, PlotData

    first = next(iter(reports.values()), None)
    source = first or record
    if source is None:
        return None
    series = [_submission_series(name, report) for name, report in reports.items()]
    if first is not None:
        series += _live_baselines(first)
    if record is not None:
        recorded = _recorded_series(record, {one.name for one in series}, bool(reports))
        if reports and record.device == "cpu":  # PyTorch was not timed in a runner
            recorded = [one for one in recorded if one.name.startswith(EXPERT)]
        series += recorded
    timed = {case for one in series for case in one.us}
    cases = [case for case in problem.spec.benchmarks if case.name in timed]
    hardware = _hardware(first) if first else record.hardware if record else ""
    practice = " (practice, not ranked)" if source.device == "cpu" else ""
    # At least one byte: a cost formula may give 0, and the axes are logarithmic.
    workloads = [CaseCost(c.name, max(problem.bytes(c), 1), problem.flops(c)) for c in cases]
    tensor = problem.unit == "tensor"
    unit = "tensor" if tensor and source.device == "cuda" else "fp32"
    roofline = _roofline(_ceilings(first, record, graded), unit)
    return PlotData(
        title=_label(f"{problem.spec.title} on {hardware}{practice}", 120),
        footnote=_footnote(first, record, roofline),
        workloads=workloads,
        series=sorted(series, key=lambda one: one.baseline),
        size_unit="flops" if tensor and all(w.flops for w in workloads) else "bytes",
        roofline=roofline,
    )


def _times_us(report: Report) -> dict[str, float]:
    return {c.name: c.time_us for c in report.cases if c.kind == "benchmark" and c.time_us}


def _submission_series(name: str, report: Report) -> TimingSeries:
    from grader.cli.plotting.plot_style import TimingSeries

    ci_us = {case.name: case.ci_us for case in report.cases if case.ci_us}
    return TimingSeries(_label(name), _times_us(report), ci_us)


def _live_baselines(report: Report) -> list[TimingSeries]:
    """The baselines timed in the same grading."""
    from grader.cli.plotting.plot_style import TimingSeries

    names = dict.fromkeys(name for case in report.cases for name in case.baseline_us)
    return [
        TimingSeries(
            _label(name),
            {c.name: c.baseline_us[name] for c in report.cases if name in c.baseline_us},
            baseline=True,
        )
        for name in names
    ]


def _recorded_series(
    record: RecordedBaselines, known: set[str], with_submissions: bool
) -> list[TimingSeries]:
    """The times recorded on the same hardware, expert kernels first, without the `known` names.

    Beside submissions all of them are baselines. Otherwise expert kernels are drawn in colour.
    """
    from grader.cli.plotting.plot_style import TimingSeries

    experts, cases = record.times.experts, record.times.cases
    names = dict.fromkeys([*experts, *(name for times in cases.values() for name in times)])
    return [
        TimingSeries(
            _label(f"{EXPERT}{name}" if name in experts else name),
            {case: times[name] for case, times in cases.items() if name in times},
            baseline=with_submissions or name not in experts,
        )
        for name in names
        if _label(name) not in known
    ]


def _ceilings(
    report: Report | None, record: RecordedBaselines | None, graded: bool
) -> dict[str, Any]:
    """The ceilings that the grading measured, or else the recorded ones; a CPU's are measured now.

    Per second, by the field names of `baseline_store.RecordedCeilings`.
    """
    if graded and report and report.device == "cpu":
        from grader.judge.gpu.environment import measure_cpu_ceilings

        return asdict(measure_cpu_ceilings())
    if report and (found := report.environment.get("ceilings")):
        return dict(found)
    return record.ceilings.model_dump() if record and record.ceilings else {}


def _roofline(ceilings: dict[str, Any], unit: str) -> Roofline | None:
    from grader.cli.plotting.plot_style import Roofline

    if not {"bytes_per_s", f"{unit}_per_s"} <= ceilings.keys():
        return None  # older gradings and records have no ceilings
    return Roofline(float(ceilings["bytes_per_s"]), float(ceilings[f"{unit}_per_s"]), unit)


def _footnote(
    report: Report | None, record: RecordedBaselines | None, roofline: Roofline | None
) -> str:
    """Versions, sandbox and dates of the times."""
    parts = []
    if report is not None:
        versions = [f"{n} {v}" for n in ("torch", "cuda") if (v := report.environment.get(n))]
        parts = [*versions, f"sandbox {report.sandbox}", f"graded {report.created_at:%Y-%m-%d}"]
    if record is not None:
        parts.append(f"baselines recorded {record.times.environment.measured_at:%Y-%m-%d}")
    if report is not None:
        parts.append("bars: 95 % intervals")
    if roofline is not None:
        parts.append("speed of light: best rates measured on this device")
    return _label(" · ".join(parts), 300)


def _label(text: str, limit: int = NAME_CHARS) -> str:
    """Text on one line, with dollar signs escaped: matplotlib would read a formula."""
    from grader.report import one_line

    return one_line(text, limit).replace("$", r"\$")


def _write(data: PlotData, path: Path) -> None:
    """Write the image atomically. Raises click.UsageError."""
    from grader.cli.plotting.plot_figure import draw

    try:
        with tempfile.TemporaryDirectory(prefix=".plot-", dir=path.parent) as name:
            temporary = Path(name) / path.name
            draw(data, temporary)
            temporary.replace(path)
    except OSError as error:
        raise not_writable(path, error) from None
