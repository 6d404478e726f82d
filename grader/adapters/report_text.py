"""A report as plain text of one screen, for a model to read."""

from __future__ import annotations

from collections.abc import Iterator

from grader import format
from grader.report import CaseResult, Report, one_line

MOST_FAILURES = 4
"""Cases that did not pass, of which a reason is shown."""
MOST_BENCHMARKS = 12
"""Benchmarks of which the time is shown."""
LOG_LINES = 10
"""Last lines of the submission's output that are shown."""
LINE_CHARS = 200


def report_text(report: Report) -> str:
    """The verdict, what failed and where, and the times; at most 40 lines."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    verdict = report.verdict or "no verdict"
    yield one_line(f"{verdict}: {report.reason}", 2 * LINE_CHARS)
    if report.rule is not None:
        yield f"rule broken: {report.rule}"
    tests = [case for case in report.cases if case.kind == "test"]
    passed = sum(case.status == "passed" for case in tests)
    where = report.gpu or report.device
    yield one_line(
        f"{report.problem} on {where}: {passed} of {len(tests)} tests passed", LINE_CHARS
    )
    if report.score_us is not None:
        yield f"score: {_micros(report.score_us)}{_speedups(report)}"
    timed = [c for c in report.cases if c.kind == "benchmark" and c.time_us is not None]
    yield from map(_benchmark, timed[:MOST_BENCHMARKS])
    failed = [case for case in report.cases if case.status not in ("passed", "not_run")]
    for case in failed[:MOST_FAILURES]:
        yield from _failure(case)
    if failed[MOST_FAILURES:]:
        yield f"{len(failed) - MOST_FAILURES} more cases failed"
    if report.log.strip() and report.verdict != "accepted":
        yield "end of its output:"
        for line in report.log.strip().splitlines()[-LOG_LINES:]:
            yield "  " + one_line(line, LINE_CHARS)


def _speedups(report: Report) -> str:
    return "".join(f", {ratio:.3g} × {name}" for name, ratio in report.speedup.items())


def _benchmark(case: CaseResult) -> str:
    assert case.time_us is not None
    roofline = "" if case.sol is None else f", {case.sol:.0%} of the roofline"
    return "  " + one_line(f"{case.name}: {_micros(case.time_us)}{roofline}", LINE_CHARS)


def _micros(time_us: float) -> str:
    return format.micros(time_us).replace("\N{NO-BREAK SPACE}", " ")


def _failure(case: CaseResult) -> Iterator[str]:
    sizes = " ".join(f"{name}={value}" for name, value in case.params.items())
    why = case.reason or case.status.replace("_", " ")
    yield one_line(f"{case.kind} {case.name} ({sizes}): {why}", 2 * LINE_CHARS)
    if (found := case.mismatch) is not None:
        yield "  " + one_line(
            f"{found.argument}{found.index}: expected {found.expected:.9g}, got {found.got:.9g}; "
            f"{found.wrong_elements:,} of {found.total_elements:,} elements are wrong",
            LINE_CHARS,
        )
