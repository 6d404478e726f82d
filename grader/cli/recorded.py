"""Recorded times as a person wants to see them: beside a result, or on their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from grader.cli.render import micros, speedup
from grader.cli.terminal import safe
from grader.report import CaseResult, Report, geometric_mean

if TYPE_CHECKING:
    from grader.judge.timings import ProblemTimes, Recorded
    from grader.problem import Problem

Ratios = dict[str, dict[str, float]]
"""Case → recorded name → recorded time over ours."""


def beside(problem: Problem, report: Report) -> Iterator[RenderableType]:
    """What recorded times have to say to a report: nothing where none are of this problem.

    A record that cannot be read is no reason to hide a verdict: it is shown as a note.
    """
    from grader.judge.timings import recorded
    from grader.judge.yardstick import processor
    from grader.problem import ProblemError

    try:
        records = recorded(problem)
    except ProblemError as error:
        yield safe(f"no recorded times: {error}", 400, "yellow")
        return
    yield from compared(report, records, report.gpu or processor())


def compared(
    report: Report, records: Sequence[Recorded], hardware: str
) -> Iterator[RenderableType]:
    """Speedups over the record of this hardware, or else the times of the first other GPU."""
    timed = [case for case in report.cases if case.kind == "benchmark" and case.time_us]
    if not timed:
        return
    same = next((one for one in records if one.hardware == hardware), None)
    other = next((one for one in records if one.device == "cuda"), None)
    if same is not None:
        if ratios := _ratios(timed, same.times):
            yield Text(f"speedup over what was recorded on {_place(same)}", "dim")
            yield from (_speedups(ratios), Text())
    elif other is not None:
        yield Text(f"recorded on {_place(other)}, not on this machine", "dim")
        yield from (times_table(other.times), Text())


def times_table(times: ProblemTimes) -> Table:
    """Times per call: a row per case, a column per baseline, the least of each row in bold."""
    names = list(dict.fromkeys(name for row in times.cases.values() for name in row))
    table = _table("benchmark", names)
    for case, row in times.cases.items():
        least = min(row.values())
        table.add_row(case, *(_cell(row.get(name), least) for name in names))
    return table


def _ratios(timed: Sequence[CaseResult], times: ProblemTimes) -> Ratios:
    """What was timed live beside this result is not compared with its record once more."""
    live = {name for case in timed for name in case.baseline_us}
    found = {
        case.name: {
            name: recorded_us / case.time_us
            for name, recorded_us in times.cases.get(case.name, {}).items()
            if name not in live and case.time_us
        }
        for case in timed
    }
    return {case: row for case, row in found.items() if row}


def _speedups(ratios: Ratios) -> Table:
    names = list(dict.fromkeys(name for row in ratios.values() for name in row))
    table = _table("benchmark", [f"× {name}" for name in names])
    for case, row in ratios.items():
        table.add_row(case, *(_ratio(row.get(name)) for name in names))
    everywhere = [[row[name] for row in ratios.values() if name in row] for name in names]
    means = [geometric_mean(r) if len(r) == len(ratios) else None for r in everywhere]
    table.add_row(Text("all", "dim"), *map(_ratio, means))
    return table


def _table(first: str, headings: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(safe(heading, 40), justify="right")
    return table


def _cell(time_us: float | None, least_us: float) -> Text:
    if time_us is None:
        return Text("–", "dim")
    return Text(micros(time_us), "bold" if time_us == least_us else "")


def _ratio(ratio: float | None) -> Text:
    if ratio is None:
        return Text("–", "dim")
    return Text(speedup(ratio), "green" if ratio >= 1 else "yellow")


def _place(record: Recorded) -> str:
    return f"{record.hardware}, {record.times.environment.measured_at:%Y-%m-%d}"
