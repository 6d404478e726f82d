"""A report as a person wants to see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from grader.cli.terminal import safe
from grader.report import UNTOLD, CaseResult, Mismatch, Report, Verdict

LOG_LINES = 12
BAR_CELLS = 8
WIDE = 100
"""Columns from which on there is room for rates and bars beside times and ratios."""

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def render(report: Report, width: int, beside: Iterable[RenderableType] = ()) -> Group:
    """The whole report: cases, what went wrong, stages, the submission's own output, the verdict.

    width: columns of the terminal; rates and bars of benchmarks go where it is narrow.
    beside: what else there is to say of the times; it follows the benchmarks.
    """
    return Group(*_parts(report, width, beside))


def _parts(
    report: Report, width: int, beside: Iterable[RenderableType]
) -> Iterator[RenderableType]:
    ran = [case for case in report.cases if case.status != "not_run"]
    tests = [case for case in ran if case.kind == "test"]
    benchmarks = [case for case in ran if case.kind == "benchmark"]
    if tests:
        yield from (_tests(tests), Text())
    if benchmarks:
        yield from (_benchmarks(benchmarks, wide=width >= WIDE), Text())
        if any(case.converged is False for case in benchmarks):
            yield Text("~ had not settled when its time budget ended", style="yellow")
    yield from beside
    if skipped := len(report.cases) - len(ran):
        yield Text(f"{skipped} more were not run\n", style="dim")
    failed = next((case for case in ran if case.status != "passed"), None)
    if failed:
        yield _failure(failed, report)
    for note in report.notes:
        yield Text.assemble(("note  ", "dim"), safe(note))
    if report.stages_s:
        yield _stages(report.stages_s)
    if report.log.strip():
        yield _log(report.log)
    # Last, since the end is what a terminal shows without scrolling.
    yield _headline(report)


# The headline ------------------------------------------------------------------------------------


def _headline(report: Report) -> Panel:
    style = verdict_style(report.verdict)
    mark = {Verdict.ACCEPTED: "✔", None: "·"}.get(report.verdict, "✘")
    word = (report.verdict or "no verdict").replace("_", " ")
    title = Text.assemble((f" {mark} {word} ", f"bold reverse {style}"), "  ")
    title.append_text(safe(f"{report.problem} · {report.submission_name}", 80, "bold"))
    if report.rule:
        title.append(f"   rule: {report.rule}", style)

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for label, value in _facts(report):
        facts.add_row(label, value)
    return Panel(
        Group(title, safe(report.reason), Text(), facts),
        border_style=style,
        box=box.ROUNDED,
        padding=(0, 1),
    )


def _facts(report: Report) -> Iterator[tuple[str, Text]]:
    if report.score_us is not None:
        score = Text(micros(report.score_us), style="bold")
        score.append(interval(report.score_us, report.score_ci_us), "dim")
        yield "score", score
    if report.rank is not None:
        yield "rank", Text(f"#{report.rank} on {report.gpu}", style="bold")
    if report.speedup:
        yield "speedup", Text.assemble(*_speedups(report.speedup))
    yield "device", safe(report.gpu or report.device)
    yield "sandbox", safe(report.sandbox)
    yield "ranked", Text("yes" if report.ranked else f"no, {_why_unranked(report)}")
    yield "result", Text(f"{report.id}" if report.id is not None else "not recorded")
    if report.seed != UNTOLD:
        yield "seed", Text(str(report.seed))


def _why_unranked(report: Report) -> str:
    if report.verdict is not Verdict.ACCEPTED:
        return "only accepted submissions are"
    if report.device == "cpu":
        return "a CPU's times are practice"
    if report.score_us is None:
        return "it was not timed"
    if any(note.startswith("not ranked") for note in report.notes):
        return "a time did not settle"
    return "this was practice"


def _speedups(ratios: dict[str, float]) -> Iterator[tuple[str, str]]:
    for position, (name, ratio) in enumerate(ratios.items()):
        style = "green" if ratio >= 1 else "yellow"
        yield ("" if position == 0 else ", ", "")
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


def _tests(cases: list[CaseResult]) -> Table:
    table = _table("test", cases)
    for heading in ("max error", "rel L2", "worst slice"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("error budget", no_wrap=True)
    for case in cases:
        table.add_row(
            *_name_and_status(case),
            _error(case.max_abs_err),
            _error(case.rel_l2),
            _error(case.worst_slice_rel_l2),
            _budget(case.error_budget_used),
        )
    return table


def _benchmarks(cases: list[CaseResult], *, wide: bool) -> Table:
    table = _table("benchmark", cases)
    baselines = list(dict.fromkeys(name for case in cases for name in case.baseline_us))
    rates = [
        (heading, field)
        for heading, field in (("GB/s", "gb_per_s"), ("TFLOP/s", "tflop_per_s"))
        if wide and any(getattr(case, field) is not None for case in cases)
    ]
    roofline = any(case.sol is not None for case in cases)
    headings = ["time per call", *(f"× {name}" for name in baselines), *(h for h, _ in rates)]
    for heading in headings + ["roofline"] * roofline:
        table.add_column(heading, justify="right", no_wrap=True)
    for case in cases:
        cells = [*_name_and_status(case), _time(case)]
        cells += [_ratio(case, name) for name in baselines]
        cells += [_rate(getattr(case, field)) for _, field in rates]
        cells += [roofline_share(case.sol, bar=wide)] * roofline
        table.add_row(*cells)
    return table


def _table(first: str, cases: list[CaseResult]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", width=1)
    table.add_column(first, no_wrap=True)
    sizes = [name for name, value in cases[0].params.items() if _is_size(value)]
    table.add_column("×".join(sizes), style="dim", min_width=8, overflow="fold")
    return table


def _name_and_status(case: CaseResult) -> tuple[Text, Text, Text]:
    mark, style = ("✔", "green") if case.status == "passed" else ("✘", "red")
    name = Text(case.name, style="" if case.status == "passed" else style)
    return Text(mark, style=style), name, Text(_brief(case.params))


def _brief(params: dict[str, Any]) -> str:
    """`4096×4096 fp32`: the sizes, whose names head the column, and the words that matter."""
    sizes = "×".join(f"{value}" for value in params.values() if _is_size(value))
    words = [value for value in params.values() if isinstance(value, str)]
    words += [name for name, value in params.items() if value is True]
    return " ".join([sizes, *words])


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def parameters(params: dict[str, Any]) -> str:
    """`rows=4096 dtype=fp32`."""
    shown = ((k, f"{v:g}" if isinstance(v, float) else f"{v}") for k, v in params.items())
    return " ".join(f"{key}={value}" for key, value in shown)


def _error(value: float | None) -> Text:
    return Text("–", style="dim") if value is None else Text(f"{value:.1e}")


def _budget(used: float | None) -> Text:
    if used is None:
        return Text("–", style="dim")
    style = "green" if used <= 0.5 else "yellow" if used <= 1 else "red"
    percent = f"{used:4.0%}" if used < 10 else ">999%"
    return Text.assemble(_bar(used, style), f" {percent}")


def roofline_share(sol: float | None, *, bar: bool) -> Text:
    """A fraction of the roofline as a percentage, with a bar before it where there is room."""
    if sol is None:
        return Text("–", style="dim")
    return Text.assemble(_bar(sol, "cyan") if bar else "", f" {sol:4.0%}")


def _bar(fraction: float, style: str) -> Text:
    eighths = round(min(max(fraction, 0.0), 1.0) * BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    cells = "█" * full + (_EIGHTHS[rest] if rest else "")
    return Text(cells.ljust(BAR_CELLS), style=f"{style} on grey15")


def _time(case: CaseResult) -> Text:
    if case.time_us is None:
        return Text("–", style="dim")
    settled = case.converged is not False
    time = Text("" if settled else "~", style="yellow" if not settled else "")
    time.append(micros(case.time_us))
    time.append(interval(case.time_us, case.ci_us), "dim")
    return time


def _ratio(case: CaseResult, baseline: str) -> Text:
    baseline_us = case.baseline_us.get(baseline)
    if baseline_us is None or not case.time_us:
        return Text("–", style="dim")
    ratio = baseline_us / case.time_us
    return Text(speedup(ratio), style="green" if ratio >= 1 else "yellow")


def speedup(ratio: float) -> str:
    """Three digits, or two where the ratio is small: 12.3, 1.25, 0.0042."""
    return f"{ratio:#.3g}" if ratio >= 0.1 else f"{ratio:.2g}"


def _rate(value: float | None) -> Text:
    return Text("–", style="dim") if value is None else Text(f"{value:,.4g}")


def micros(time_us: float) -> str:
    """A time with the unit that suits it: µs, ms or s; four significant digits."""
    for limit, divisor, unit in ((1e3, 1.0, "µs"), (1e6, 1e3, "ms")):
        if time_us < limit:
            return f"{time_us / divisor:#.4g} {unit}"
    return f"{time_us / 1e6:#.4g} s"


def interval(time_us: float, ci_us: tuple[float, float] | None) -> str:
    """The relative half-width of a confidence interval, as `` ± 0.12%``; empty without one. Where
    it is more than the time itself, its digits say nothing."""
    if ci_us is None or time_us <= 0:
        return ""
    share = max(ci_us[1] - time_us, time_us - ci_us[0]) / time_us
    return f" ± {share:.2%}" if share <= 1 else "  did not settle"


# What went wrong ---------------------------------------------------------------------------------


def _failure(case: CaseResult, report: Report) -> Panel:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    if case.reason:
        facts.add_row("what", safe(case.reason))
    facts.add_row("parameters", Text(parameters(case.params)))
    told = report.seed != UNTOLD
    if told:
        facts.add_row("seed", Text(str(report.seed)))
    for label, value in _mismatch(case.mismatch) if case.mismatch else ():
        facts.add_row(label, value)
    if told and report.id is not None:
        facts.add_row("again", Text(f"grade replay {report.id}"))
    title = f"{case.kind} {case.name}: {case.status.replace('_', ' ')}"
    return Panel(
        facts,
        title=Text(title, "bold red"),
        title_align="left",
        border_style="red",
        box=box.ROUNDED,
    )


def _mismatch(found: Mismatch) -> Iterator[tuple[str, RenderableType]]:
    shape = " × ".join(map(str, found.shape)) or "a single number"
    yield "output", safe(f"{found.argument}, {shape}")
    yield "first wrong", Text(f"[{', '.join(map(str, found.index))}]")
    yield "expected", Text(f"{found.expected:.9g}", style="green")
    yield "got", Text(f"{found.got:.9g}", style="red")
    share = found.wrong_elements / max(found.total_elements, 1)
    yield "wrong", Text(f"{found.wrong_elements:,} of {found.total_elements:,} ({share:.2%})")
    if found.worst_slice:
        yield "worst slice", safe(found.worst_slice)
    if found.histogram:
        yield "error sizes", _histogram(found.histogram)


def _histogram(bins: Iterable[tuple[str, int]]) -> Table:
    bins = list(bins)
    most = max(count for _, count in bins) or 1
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for label, count in bins:
        bar = "▇" * max(round(24 * count / most), 1 if count else 0)
        table.add_row(safe(label, 24), Text(bar, style="red"), Text(f"{count:,}"))
    return table


# The rest ----------------------------------------------------------------------------------------


def _stages(stages_s: dict[str, float]) -> Text:
    shown = (f"{name.replace('_', ' ')} {seconds:.2f} s" for name, seconds in stages_s.items())
    return Text.assemble(("stages  ", "dim"), " · ".join(shown))


def _log(log: str) -> Panel:
    lines = log.strip("\n").splitlines()
    tail = lines[-LOG_LINES:]
    cut = f", last {LOG_LINES} of {len(lines)} lines" if len(lines) > LOG_LINES else ""
    return Panel(
        safe("\n".join(tail), 4000),
        title=Text(f"what the submission printed{cut}", "dim"),
        title_align="left",
        border_style="dim",
        box=box.ROUNDED,
    )
