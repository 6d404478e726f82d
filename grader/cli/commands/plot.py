"""`grade plot`: times, rates and a roofline as a picture."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grader.cli.dependencies import Desk
from grader.cli.options import (
    check_writable,
    db_option,
    device_option,
    find_problem,
    sandbox_option,
    unwritable,
)

if TYPE_CHECKING:
    from grader.cli.plotting.plot_style import Ceiling, Picture, Series
    from grader.judge.timing.baseline_store import RecordedBaselines
    from grader.problem import Problem
    from grader.report import Report

MOST = 6
"""Files or results in one picture: as many as there are colours that everyone can tell apart."""

NAME_CHARS = 40


@click.command()
@click.argument("problem")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Where to draw, a name in .png or .svg [default: PROBLEM.png].",
)
@device_option
@sandbox_option
@db_option
@click.pass_obj
def plot(
    desk: Desk,
    problem: str,
    files: tuple[Path, ...],
    out: Path | None,
    device: str,
    sandbox_name: str,
    db: str | None,
) -> int:
    """Draw how fast FILES are for PROBLEM: time and rate over size, and a roofline.

    FILES are graded as `grade practice --full` does. Without any, the best results on the board are
    drawn, beside the times recorded on the same GPU. Exit status 1 when a file is not accepted; the
    others are drawn all the same.
    """
    from grader.cli.output.terminal import err

    found = find_problem(problem)
    path = _checked(out or Path(f"{found.name}.png"))
    if len(files) > MOST:
        raise click.UsageError(f"a picture takes {MOST} files at most, not {len(files)}")
    status = 0
    if files:
        reports, status = _graded(desk, found, files, device, sandbox_name)
        if not reports:
            return status
    else:
        reports = _best(desk, found, device, db)
    picture = _picture(found, reports, _record(found, reports, device), graded=bool(files))
    if picture is None:
        raise click.UsageError(
            f"nothing is on record for this version of {found.name}; name files to grade and draw"
        )
    _write(picture, path)
    err().print(f"drawn: {path}", style="green", soft_wrap=True)
    return status


def _checked(out: Path) -> Path:
    """Everything that would be a pity to find out after the grading."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no word of its fonts and caches
    if find_spec("matplotlib") is None:
        raise click.UsageError("pictures need matplotlib: pip install '.[plot]'")
    if out.suffix not in (".png", ".svg"):
        raise click.UsageError(f"--out {out}: end the name in .png or .svg")
    check_writable(out)
    if out.is_dir():
        raise click.UsageError(f"--out {out}: is a folder; name a file in it")
    return out


# What there is to draw ---------------------------------------------------------------------------


def _graded(
    desk: Desk, problem: Problem, files: tuple[Path, ...], device: str, sandbox_name: str
) -> tuple[dict[str, Report], int]:
    """The reports of the accepted files by name, and the first exit status that is not 0."""
    from grader.cli.commands.submit import Job, exit_status, run
    from grader.cli.output.terminal import err, safe

    jobs = [Job.prepare(desk, problem, file, device, sandbox_name) for file in files]
    same_name = len({file.name for file in files}) < len(files)
    names = [str(file) if same_name else file.name for file in files]
    reports: dict[str, Report] = {}
    status = 0
    for job, name in zip(jobs, names, strict=True):
        report = run(desk, job, show=True)
        if report.verdict == "accepted" and _us(report):
            reports[name] = report
        else:
            word = (report.verdict or "no verdict").replace("_", " ")
            line = safe(f"{name} is not drawn: {word}, {report.reason}", 500, "yellow")
            err().print(line, soft_wrap=True)
            status = status or exit_status(report)
    return reports, status


def _best(desk: Desk, problem: Problem, device: str, db: str | None) -> dict[str, Report]:
    """The best results on the board of the first GPU that has any, by user."""
    from grader.board import BoardError
    from grader.cli.output.terminal import err

    if device == "cpu":
        return {}  # no CPU is on it
    try:
        board = desk.board(db)
    except BoardError:
        if db is not None:
            raise
        return {}
    try:
        gpu, *others = board.gpus(problem.digest) or [""]
        if others:
            line = f"drawing {gpu}; the board also has {', '.join(others)}"
            err().print(line, style="dim", soft_wrap=True)
        entries = board.leaderboard(problem.digest, gpu)[:MOST]
        return {entry.user: board.result(entry.result_id).report for entry in entries}
    finally:
        board.close()


def _record(problem: Problem, reports: dict[str, Report], device: str) -> RecordedBaselines | None:
    """The recorded times of the reports' hardware; without reports, the first of that device. A
    record that cannot be read hides nothing else."""
    from grader.cli.output.terminal import err, safe
    from grader.judge.timing.baseline_store import load_recorded
    from grader.problem import ProblemError

    hardware = {_hardware(report) for report in reports.values()}
    try:
        records = load_recorded(problem)
    except ProblemError as error:
        err().print(safe(f"no recorded times: {error}", 400, "yellow"), soft_wrap=True)
        return None
    for one in records:
        if one.hardware in hardware or (not reports and device in ("auto", one.device)):
            return one
    return None


def _hardware(report: Report) -> str:
    from grader.judge.timing.baseline_store import processor_name

    return report.gpu or processor_name()


# The picture of it -------------------------------------------------------------------------------


def _picture(
    problem: Problem, reports: dict[str, Report], record: RecordedBaselines | None, graded: bool
) -> Picture | None:
    """All that is drawn; None when there is nothing. `graded`: the reports are of here and now."""
    from grader.cli.plotting.plot_style import Picture, Spot

    first = next(iter(reports.values()), None)
    source = first or record
    if source is None:
        return None
    series = [_submission(name, report) for name, report in reports.items()]
    if first is not None:
        series += _live(first)
    if record is not None:
        series += _recorded(record, {one.name for one in series}, bool(reports))
    timed = {case for one in series for case in one.us}
    cases = [case for case in problem.spec.benchmarks if case.name in timed]
    hardware = _hardware(first) if first else record.hardware if record else ""
    practice = " (practice, not ranked)" if source.device == "cpu" else ""
    # A cost may be 0, and a logarithm's argument may not: a call moves a byte at the least.
    spots = [Spot(c.name, max(problem.bytes(c), 1), problem.flops(c)) for c in cases]
    tensor = problem.spec.cost.unit == "tensor"
    unit = "tensor" if tensor and source.device == "cuda" else "fp32"
    ceiling = _ceiling(_rates(first, record, graded), unit)
    return Picture(
        title=_label(f"{problem.spec.title} on {hardware}{practice}", 120),
        footnote=_footnote(first, record, ceiling),
        spots=spots,
        series=sorted(series, key=lambda one: one.baseline),
        by="flops" if tensor and all(spot.flops for spot in spots) else "bytes",
        ceiling=ceiling,
    )


def _us(report: Report) -> dict[str, float]:
    return {c.name: c.time_us for c in report.cases if c.kind == "benchmark" and c.time_us}


def _submission(name: str, report: Report) -> Series:
    from grader.cli.plotting.plot_style import Series

    ci_us = {case.name: case.ci_us for case in report.cases if case.ci_us}
    return Series(_label(name), _us(report), ci_us)


def _live(report: Report) -> list[Series]:
    """The baselines that were timed in the same grading."""
    from grader.cli.plotting.plot_style import Series

    names = dict.fromkeys(name for case in report.cases for name in case.baseline_us)
    return [
        Series(
            _label(name),
            {c.name: c.baseline_us[name] for c in report.cases if name in c.baseline_us},
            baseline=True,
        )
        for name in names
    ]


def _recorded(record: RecordedBaselines, known: set[str], beside: bool) -> list[Series]:
    """What was recorded on the same hardware; our own kernels first.

    `beside` submissions they are all baselines; else our own kernels are what is drawn in colour.
    """
    from grader.cli.plotting.plot_style import Series

    experts, cases = record.times.experts, record.times.cases
    names = dict.fromkeys([*experts, *(name for times in cases.values() for name in times)])
    return [
        Series(
            _label(f"expert {name}" if name in experts else name),
            {case: times[name] for case, times in cases.items() if name in times},
            baseline=beside or name not in experts,
        )
        for name in names
        if _label(name) not in known
    ]


def _rates(report: Report | None, record: RecordedBaselines | None, graded: bool) -> dict[str, Any]:
    """The ceilings that the report's grading measured, else those on record; a CPU's of now."""
    if graded and report and report.device == "cpu":
        from grader.judge.gpu.environment import measure_cpu_ceilings

        return asdict(measure_cpu_ceilings())
    if report and (found := report.environment.get("ceilings")):
        return dict(found)
    return record.ceilings.model_dump() if record and record.ceilings else {}


def _ceiling(rates: dict[str, Any], unit: str) -> Ceiling | None:
    from grader.cli.plotting.plot_style import Ceiling

    if not {"bytes_per_s", f"{unit}_per_s"} <= rates.keys():
        return None  # of a grading or a record from before ceilings were kept
    return Ceiling(float(rates["bytes_per_s"]), float(rates[f"{unit}_per_s"]), unit)


def _footnote(
    report: Report | None, record: RecordedBaselines | None, ceiling: Ceiling | None
) -> str:
    """Where the numbers are from, as far as the reports say."""
    parts = []
    if report is not None:
        versions = [f"{n} {v}" for n in ("torch", "cuda") if (v := report.environment.get(n))]
        parts = [*versions, f"sandbox {report.sandbox}", f"graded {report.created_at:%Y-%m-%d}"]
    if record is not None:
        parts.append(f"baselines recorded {record.times.environment.measured_at:%Y-%m-%d}")
    if report is not None:
        parts.append("bars: 95 % intervals")
    if ceiling is not None:
        parts.append("speed of light: best rates measured on this device")
    return _label(" · ".join(parts), 300)


def _label(text: str, limit: int = NAME_CHARS) -> str:
    """Text of anybody's making, so that matplotlib shows it and reads no formula in it."""
    from grader.report import one_line

    return one_line(text, limit).replace("$", r"\$")


def _write(picture: Picture, path: Path) -> None:
    """Whole or not at all."""
    from grader.cli.plotting.plot_figure import draw

    try:
        with tempfile.TemporaryDirectory(prefix=".plot-", dir=path.parent) as name:
            half = Path(name) / path.name
            draw(picture, half)
            half.replace(path)
    except OSError as error:
        raise unwritable(path, error) from None
