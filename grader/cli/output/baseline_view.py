"""Recorded baseline times as tables: compared with a report, or alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from grader.cli.output.render import micros, speedup
from grader.cli.output.terminal import safe_text
from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column
from grader.report import CaseResult, Report, geometric_mean

if TYPE_CHECKING:
    from grader.judge.timing.baseline_store import ProblemBaselines, RecordedBaselines
    from grader.problem import Problem

Ratios = dict[str, dict[str, float]]
"""Case → name of the baseline → recorded time over the submission's time."""


def recorded_baselines(problem: Problem, report: Report) -> Iterator[RenderableType]:
    """Comparison of a report with recorded baselines; nothing if none are of this problem.

    A record that cannot be read is shown as a note and does not hide the verdict.
    """
    from grader.judge.timing.baseline_store import load_recorded, processor_name
    from grader.problem import ProblemError

    try:
        records = load_recorded(problem)
    except ProblemError as error:
        yield safe_text(f"no recorded times: {error}", 400, "yellow")
        return
    yield from _comparison(report, records, report.gpu or processor_name())


def _comparison(
    report: Report, records: Sequence[RecordedBaselines], hardware: str
) -> Iterator[RenderableType]:
    """Speedups over the record of this hardware; on a GPU without one, the times of the first
    other GPU. On a CPU only the expert kernels were timed as a submission is, in a runner."""
    timed = [case for case in report.cases if case.kind == "benchmark" and case.time_us]
    if not timed:
        return
    same = next((one for one in records if one.hardware == hardware), None)
    other = next((one for one in records if one.device == "cuda"), None)
    is_cpu = report.device == "cpu"
    if same is not None:
        if ratios := _ratios(timed, same.times, same.times.experts if is_cpu else None):
            yield Text(f"speedup over the baselines recorded on {_source(same)}", "dim")
            uncertain = {case.name for case in timed if case.converged is False}
            yield from (_speedups(ratios, uncertain), Text())
    elif other is not None and not is_cpu:
        yield Text(f"baselines recorded on {_source(other)}, not on this machine", "dim")
        yield from (times_table(other.times), Text())


def times_table(times: ProblemBaselines) -> ResponsiveTable:
    """Times per call: a row per case, a column per baseline, the fastest of each row in bold."""
    names = list(dict.fromkeys(name for row in times.cases.values() for name in row))
    columns = [
        [_cell(row.get(name), min(row.values())) for row in times.cases.values()] for name in names
    ]
    return _table(list(times.cases), names, columns)


def _ratios(
    timed: Sequence[CaseResult], times: ProblemBaselines, only: Sequence[str] | None
) -> Ratios:
    """Ratios to the recorded baselines that were not also timed in this grading.

    only: the names to compare with; None for all.
    """
    live = {name for case in timed for name in case.baseline_us}
    found = {
        case.name: {
            name: recorded_us / case.time_us
            for name, recorded_us in times.cases.get(case.name, {}).items()
            if name not in live and case.time_us and (only is None or name in only)
        }
        for case in timed
    }
    return {case: row for case, row in found.items() if row}


def _speedups(ratios: Ratios, uncertain: set[str]) -> ResponsiveTable:
    names = list(dict.fromkeys(name for row in ratios.values() for name in row))
    columns = []
    for name in names:
        cells = [_ratio(row.get(name), case in uncertain) for case, row in ratios.items()]
        known = [row[name] for row in ratios.values() if name in row]
        mean = geometric_mean(known) if len(known) == len(ratios) else None
        columns.append([*cells, _ratio(mean, bool(uncertain))])
    return _table([*ratios, "all"], [f"× {name}" for name in names], columns)


def _table(cases: list[str], headings: list[str], columns: list[list[Text]]) -> ResponsiveTable:
    """A column per baseline; a narrow terminal shows the first ones."""
    named = [
        number_column(safe_text(heading, 40).plain, cells, priority)
        for priority, (heading, cells) in enumerate(zip(headings, columns, strict=True), 1)
    ]
    return ResponsiveTable([TableColumn("benchmark", [Text(case) for case in cases]), *named])


def _cell(time_us: float | None, least_us: float) -> Text:
    if time_us is None:
        return Text("–", "dim")
    return Text(micros(time_us), "bold" if time_us == least_us else "")


def _ratio(ratio: float | None, uncertain: bool) -> Text:
    if ratio is None:
        return Text("–", "dim")
    style = "green" if ratio >= 1 else "yellow"
    return Text.assemble(("~" if uncertain else "", "yellow"), (speedup(ratio), style))


def _source(record: RecordedBaselines) -> str:
    return f"{record.hardware}, {record.times.environment.measured_at:%Y-%m-%d}"
