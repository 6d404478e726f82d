"""A report as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from grader import format
from grader.cli.output.terminal import safe_text
from grader.cli.output.text_tables import ResponsiveTable, TableColumn, number_column
from grader.problem_sets import problem_argument
from grader.report import HIDDEN_SEED, LOG_BYTES, CaseResult, Mismatch, Report, Verdict, provenance

LOG_ROWS = 12
"""Rows of the submission's log that are shown."""
BAR_CELLS = 8
NOT_CONVERGED = "~ had not converged when the time budget ended"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def render(report: Report, width: int, baselines: Iterable[RenderableType] = ()) -> Group:
    """The whole report: cases, the first failure, stages, the submission's log, the verdict.

    width: columns of the terminal.
    baselines: comparison with recorded times, shown after the benchmarks.
    """
    return Group(*_parts(report, width, baselines))


def _parts(
    report: Report, width: int, baselines: Iterable[RenderableType]
) -> Iterator[RenderableType]:
    ran = [case for case in report.cases if case.status != "not_run"]
    tests = [case for case in ran if case.kind == "test"]
    benchmarks = [case for case in ran if case.kind == "benchmark"]
    if tests:
        yield from (_tests(tests), Text())
    if benchmarks:
        yield from (_benchmarks(benchmarks), Text())
        if any(case.converged is False for case in benchmarks):
            yield Text(NOT_CONVERGED, style="yellow")
    yield from baselines
    if skipped := len(report.cases) - len(ran):
        cases = "case was" if skipped == 1 else "cases were"
        yield Text(f"{skipped} more {cases} not run\n", style="dim")
    failed = [case for case in ran if case.status != "passed"]
    if failed:
        yield _failure(failed[0], report, width)
    if failed[1:]:
        yield _other_failures(failed[1:])
    for note in report.notes:
        yield Text.assemble(("note  ", "dim"), safe_text(note))
    if report.stages_s:
        yield _stages(report.stages_s)
    if report.log.strip():
        yield _log(report.log, width)
    # Last: a terminal shows the end without scrolling.
    yield _headline(report)


# The headline ------------------------------------------------------------------------------------


def _headline(report: Report) -> Panel:
    style = verdict_style(report.verdict)
    mark = {Verdict.ACCEPTED: "✔", None: "·"}.get(report.verdict, "✘")
    word = (report.verdict or "no verdict").replace("_", " ")
    title = Text.assemble((f" {mark} {word} ", f"bold reverse {style}"), "  ")
    title.append_text(safe_text(f"{report.problem} · {report.submission_name}", 80, "bold"))

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for label, value in _facts(report):
        facts.add_row(label, value)
    return Panel(
        Group(title, safe_text(report.reason), Text(), facts),
        border_style=style,
        box=box.ROUNDED,
        padding=(0, 1),
    )


def _facts(report: Report) -> Iterator[tuple[str, Text]]:
    if report.rule:  # after the reason, which says it in words
        yield "rule", Text(report.rule, style=verdict_style(report.verdict))
    if report.score_us is not None:
        score = Text(micros(report.score_us), style="bold")
        score.append(interval(report.score_us, report.score_ci_us), "dim")
        yield "score", score
    if report.rank is not None:
        yield "rank", Text(f"#{report.rank} on {report.gpu}", style="bold")
    if report.speedup:
        yield "speedup", Text.assemble(*_speedups(report))
    yield "device", safe_text(report.gpu or report.device)
    if report.worker is not None:
        yield from ((label, safe_text(text)) for label, text in provenance(report))
    yield "sandbox", safe_text(report.sandbox)
    why = why_unranked(report)
    yield "ranked", safe_text(f"no, {why}" if why else "yes")
    yield "result", Text(f"{report.id}" if report.id is not None else "not recorded")
    if report.seed != HIDDEN_SEED:
        yield "seed", Text(str(report.seed))


UNRANKED = "not ranked: "
"""Prefix of the judge's note on why an accepted result does not rank. The reason ends at a
semicolon; the advice follows."""


def why_unranked(
    report: Report, problem_digest: str | None = None, *, void: bool = False
) -> str | None:
    """Why a result does not rank; None if it does.

    problem_digest: the version of the problem that ranks; None if any does.
    void: whether an admin has declared that the result does not count, or its author has withdrawn
        it.
    """
    if report.verdict is not Verdict.ACCEPTED:
        return "not accepted"
    if void:
        return "declared void by an admin, or withdrawn by its author"
    if problem_digest not in (None, report.problem_digest):
        return "of another version of the problem"
    if report.ranked:
        return None
    if report.device == "cpu":
        return "CPU times are practice"
    if report.score_us is None:
        return "it was not timed"
    for note in report.notes:
        if note.startswith(UNRANKED):
            return note.removeprefix(UNRANKED).partition(";")[0]
    return "this was practice"


def _speedups(report: Report) -> Iterator[tuple[str, str]]:
    mark = "~" if any(case.converged is False for case in report.cases) else ""
    for position, (name, ratio) in enumerate(report.speedup.items()):
        style = "green" if ratio >= 1 else "yellow"
        yield ("" if position == 0 else ", ", "")
        yield (mark, "yellow")
        yield (f"{speedup(ratio)}×", style)
        yield (f" {name}", "")


def verdict_style(verdict: Verdict | None) -> str:
    """The colour of a verdict."""
    if verdict is Verdict.ACCEPTED:
        return "green"
    if verdict is None:
        return "cyan"
    return "magenta" if verdict in (Verdict.JUDGE_ERROR, Verdict.REJECTED) else "red"


# The cases ---------------------------------------------------------------------------------------


def _tests(cases: list[CaseResult]) -> ResponsiveTable:
    return ResponsiveTable(
        [
            *_what("test", cases, sizes_priority=3),
            number_column("max\nerror", [_error(case.max_abs_err) for case in cases], priority=2),
            number_column("rel L2", [_error(case.rel_l2) for case in cases], priority=4),
            number_column(
                "worst\nslice", [_error(case.worst_slice_rel_l2) for case in cases], priority=5
            ),
            number_column("error\nbudget", [_budget(_spent(case)) for case in cases], priority=1),
            TableColumn("", [_budget_bar(_spent(case)) for case in cases], priority=6),
        ]
    )


def _benchmarks(cases: list[CaseResult]) -> ResponsiveTable:
    baselines = list(dict.fromkeys(name for case in cases for name in case.baseline_us))
    columns = [
        *_what("benchmark", cases, sizes_priority=4),
        number_column("time\nper call", [_time(case) for case in cases]),
        TableColumn("", [_interval(case) for case in cases], priority=2, style="dim"),
        *(
            number_column(f"× {name}", [_ratio(c, name) for c in cases], priority=1)
            for name in baselines
        ),
    ]
    for heading, field in (("GB/s", "gb_per_s"), ("TFLOP/s", "tflop_per_s")):
        rates: list[float | None] = [getattr(case, field) for case in cases]
        if any(rate is not None for rate in rates):
            columns.append(number_column(heading, [_rate(rate) for rate in rates], priority=5))
    if any(case.sol is not None for case in cases):
        columns.append(number_column("roofline", [share(case.sol) for case in cases], priority=3))
        columns.append(TableColumn("", [share_bar(case.sol) for case in cases], priority=6))
    return ResponsiveTable(columns)


def _what(kind: str, cases: list[CaseResult], sizes_priority: int) -> list[TableColumn]:
    """Columns of the outcome, name and parameters of each case."""
    passed = [case.status == "passed" for case in cases]
    marks = [Text("✔", "green") if good else Text("✘", "red") for good in passed]
    names = [Text(c.name, "" if good else "red") for c, good in zip(cases, passed, strict=True)]
    sizes = [name for name, value in cases[0].params.items() if format.is_size(value)]
    shapes = [Text(format.parameters(case.params)) for case in cases]
    return [
        TableColumn("", marks),
        TableColumn(kind, names),
        TableColumn("×".join(sizes), shapes, sizes_priority, style="dim"),
    ]


def parameters(params: dict[str, Any]) -> str:
    """`rows=4096 dtype=fp32`."""
    shown = ((k, f"{v:g}" if isinstance(v, float) else f"{v}") for k, v in params.items())
    return " ".join(f"{key}={value}" for key, value in shown)


def _error(value: float | None) -> Text:
    return Text("–", style="dim") if value is None else Text(f"{value:.1e}")


def _spent(case: CaseResult) -> float | None:
    """Used share of the error budget; None if the case failed for another reason."""
    used = case.error_budget_used
    return None if case.status != "passed" and used is not None and used <= 1 else used


def _budget(used: float | None) -> Text:
    if used is None:
        return Text("–", style="dim")
    return Text(f"{used:.0%}" if used < 10 else ">999%", _budget_style(used))


def _budget_bar(used: float | None) -> Text:
    return Text() if used is None else _bar(used, _budget_style(used))


def _budget_style(used: float) -> str:
    return "green" if used <= 0.5 else "yellow" if used <= 1 else "red"


def share(fraction: float | None) -> Text:
    """A fraction of the roofline, as a percentage; a dash for None."""
    return Text("–", style="dim") if fraction is None else Text(f"{fraction:.0%}")


def share_bar(fraction: float | None) -> Text:
    """A fraction of the roofline, as a bar."""
    return Text() if fraction is None else _bar(fraction, "cyan")


def _bar(fraction: float, style: str) -> Text:
    eighths = round(min(max(fraction, 0.0), 1.0) * BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    cells = "█" * full + (_EIGHTHS[rest] if rest else "")
    return Text(cells.ljust(BAR_CELLS), style=f"{style} on grey15")


def _time(case: CaseResult) -> Text:
    if case.time_us is None:
        return Text("–", style="dim")
    return Text.assemble((_unconverged(case), "yellow"), micros(case.time_us))


def _interval(case: CaseResult) -> Text:
    return Text("" if case.time_us is None else interval(case.time_us, case.ci_us).strip())


def _ratio(case: CaseResult, baseline: str) -> Text:
    baseline_us = case.baseline_us.get(baseline)
    if baseline_us is None or not case.time_us:
        return Text("–", style="dim")
    ratio = baseline_us / case.time_us
    style = "green" if ratio >= 1 else "yellow"
    return Text.assemble((_unconverged(case), "yellow"), (speedup(ratio), style))


def _unconverged(case: CaseResult) -> str:
    return "~" if case.converged is False else ""


def speedup(ratio: float) -> str:
    """Three digits, or two where the ratio is small: 12.3, 1.25, 0.0042."""
    return f"{ratio:#.3g}" if ratio >= 0.1 else f"{ratio:.2g}"


RATIO_FROM = 0.5
"""Gaps from here on are shown as a ratio of the times (1.60×), smaller ones in percent."""


def gap(ratio: float) -> float:
    """How much faster or slower, as a fraction: the longer time over the shorter, minus one.

    If A is 25 % faster than B, B is 25 % slower than A.

    ratio: either time over the other.
    """
    return max(ratio, 1 / ratio) - 1


def _rate(value: float | None) -> Text:
    return Text("–", style="dim") if value is None else Text(f"{value:,.4g}")


def micros(time_us: float) -> str:
    """A time in µs, ms or s, with four significant digits."""
    return format.micros(time_us).replace("\N{NO-BREAK SPACE}", " ")  # some terminals lack it


def size(count_bytes: float) -> str:
    """A size in B, KiB, MiB or GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count_bytes < 1024 or unit == "GiB":
            break
        count_bytes /= 1024
    return f"{count_bytes:.4g} {unit}"


def interval(time_us: float, ci_us: tuple[float, float] | None) -> str:
    """The relative half-width of a confidence interval, as `` ± 0.12%``; empty without one.

    A half-width above the time itself is shown as "did not converge".
    """
    if ci_us is None or time_us <= 0:
        return ""
    half_width = max(ci_us[1] - time_us, time_us - ci_us[0]) / time_us
    return f" ± {half_width:.2%}" if half_width <= 1 else "  did not converge"


# The first failure -------------------------------------------------------------------------------


def _failure(case: CaseResult, report: Report, width: int) -> Panel:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    if case.reason:
        facts.add_row("reason", safe_text(case.reason))
    facts.add_row("parameters", Text(parameters(case.params)))
    for label, value in _mismatch(case.mismatch, width) if case.mismatch else ():
        facts.add_row(label, value)
    if report.seed != HIDDEN_SEED:
        problem = problem_argument(report.problem)
        again = f"grade practice {problem} FILE --case {case.name} --seed {report.seed}"
        if report.id is not None:
            again = f"grade replay {report.id}"
        facts.add_row("run again", safe_text(again))
    title = f"{case.kind} {case.name}: {case.status.replace('_', ' ')}"
    return Panel(
        facts,
        title=Text(title, "bold red"),
        title_align="left",
        border_style="red",
        box=box.ROUNDED,
    )


def _other_failures(cases: list[CaseResult]) -> Group:
    """A line for each case that failed besides the first."""
    lines = [Text("also failed", "bold red")]
    for case in cases:
        why = case.reason or case.status.replace("_", " ")
        why = why.removeprefix(f"case '{case.name}' ")  # named in this line already
        line = Text.assemble(("  ✘ ", "red"), (case.name, "red"), "  ")
        lines.append(line.append_text(safe_text(why)))
        if case.mismatch is not None:
            lines += [safe_text(f"    also {other}") for other in case.mismatch.others]
    return Group(*lines, Text())


def _mismatch(found: Mismatch, width: int) -> Iterator[tuple[str, RenderableType]]:
    shape = " × ".join(map(str, found.shape)) or "a single number"
    yield "output", safe_text(f"{found.argument}, {shape}")
    yield "first wrong", Text(f"[{', '.join(map(str, found.index))}]")
    yield "expected", Text(f"{found.expected:.9g}", style="green")
    yield "got", Text(f"{found.got:.9g}", style="red")
    share = found.wrong_elements / max(found.total_elements, 1)
    yield "wrong", Text(f"{found.wrong_elements:,} of {found.total_elements:,} ({share:.2%})")
    if found.worst_slice:
        yield "worst slice", safe_text(found.worst_slice)
    if found.histogram:
        yield "error sizes", _histogram(found.histogram, min(24, max(width - 45, 0)))
    if found.looks_like:
        yield "", safe_text(f"as large as rounding to {found.looks_like} leaves them")
    for other in found.others:
        yield "also wrong", safe_text(other)


def _histogram(bins: Iterable[tuple[str, int]], bar_cells: int) -> Table:
    bins = list(bins)
    most = max(count for _, count in bins) or 1
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for label, count in bins:
        bar = "▇" * max(round(bar_cells * count / most), 1 if count else 0)
        table.add_row(safe_text(label, 24), Text(bar, style="red"), Text(f"{count:,}"))
    return table


# Stages and log ----------------------------------------------------------------------------------


def _stages(stages_s: dict[str, float]) -> Text:
    shown = (f"{name.replace('_', ' ')} {seconds:.2f} s" for name, seconds in stages_s.items())
    return Text.assemble(("stages  ", "dim"), " · ".join(shown))


def _log(log: str, width: int) -> Panel:
    """The last `LOG_ROWS` rows of the log, after wrapping: a traceback is at the end."""
    rows = safe_text(log.strip("\n"), LOG_BYTES).wrap(Console(), max(width - 4, 1))
    title = "output of the submission"
    if len(rows) > LOG_ROWS:
        title = f"last {LOG_ROWS} rows of its output; --json has more"
    return Panel(
        Group(*rows[-LOG_ROWS:]),
        title=Text(title, "dim"),
        title_align="left",
        border_style="dim",
        box=box.ROUNDED,
    )
