"""A report from a machine that is not ours: what is taken of it, and as what. Pure.

A worker is believed about what it has leased, since somebody must be. But a board is kept for good,
and one number that makes no sense, or one text that is not what it seems, would be on everybody's
page. So nothing is taken that the judge could not have said.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from grader.report import LOG_BYTES, CaseResult, Report, Verdict, escape, one_line

TEXT_CHARS = 1000
"""The longest text but the log."""

GPU_CHARS = 200
"""The longest name of a GPU that the board takes."""

LARGEST = 1e18
"""Beyond every time, rate and ratio of a grading."""

DIMENSIONS = 16
"""More than any argument has."""

DEPTH = 20
"""More than any report is nested."""

ENTRIES = 1000
"""More than any list or table of a report has, such as its cases."""

ROUNDS, BINS, BASELINES = 200, 100, 50
"""The same of those that are short. The judge measures at most 40 rounds of a case."""

NOTES = 200
"""What is beyond is left out: each noisy case of many may have some."""

_ERRORS = frozenset(
    ["max_abs_err", "rel_l2", "worst_slice_rel_l2", "error_budget_used", "expected", "got"]
)
"""Only these may be infinite or not a number: a wrong answer may be."""


def vetted(report: Report, now: datetime) -> Report:
    """The report with every text safe to show, and `created_at` by our clock.

    Raises ValueError for numbers that no grading has, and for more of them than one has.
    """
    for name, length, most in _lengths(report):
        if length > most:
            raise ValueError(f"{name} cannot be {length:,} long; the most is {most:,}")
    told = report.model_dump(exclude={"log", "created_at"}) | {"notes": report.notes[:NOTES]}
    whole = _clean(told, "report")
    whole |= {
        "log": escape(report.log, LOG_BYTES),
        "reason": one_line(report.reason),
        "gpu": None if report.gpu is None else one_line(report.gpu, GPU_CHARS),
        "created_at": now,
    }
    found = Report.model_validate(whole)
    if found.verdict is Verdict.ACCEPTED:
        for name, value in _measured(found):
            if value <= 0:
                raise ValueError(f"{name} cannot be {value:g}")
    for low_us, high_us in (i for i in _intervals(found) if i is not None):
        if low_us > high_us:
            raise ValueError(f"an interval cannot be from {low_us:g} to {high_us:g}")
    for case in found.cases:
        _check_picture(case)
    return found


def _clean(value: Any, name: str, depth: int = 0) -> Any:
    """A value with its texts escaped. Raises ValueError for what is beyond all bounds."""
    if depth > DEPTH:
        raise ValueError(f"{one_line(name, 40)} is nested too deep")
    if isinstance(value, dict | list | tuple) and len(value) > ENTRIES:
        raise ValueError(f"{one_line(name, 40)} cannot be {len(value):,} long")
    if isinstance(value, dict):
        return {
            one_line(str(key), 100): _clean(inner, str(key), depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_clean(inner, name, depth + 1) for inner in value]
    if isinstance(value, str):
        return one_line(value, TEXT_CHARS)
    if isinstance(value, float) and not abs(value) <= LARGEST and name not in _ERRORS:
        raise ValueError(f"{one_line(name, 40)} cannot be {value:g}")
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise ValueError(f"{one_line(name, 40)} is too large a number")
    return value


def _lengths(report: Report) -> Iterator[tuple[str, int, int]]:
    """What is short in every report: its name, how long it is here, and at most."""
    yield "speedup", len(report.speedup), BASELINES
    for case in report.cases:
        yield "round_us", len(case.round_us), ROUNDS
        yield "round_mhz", len(case.round_mhz), ROUNDS
        yield "baseline_us", len(case.baseline_us), BASELINES
        if case.mismatch is not None:
            yield "histogram", len(case.mismatch.histogram), BINS
            yield "shape", len(case.mismatch.shape), DIMENSIONS
            yield "index", len(case.mismatch.index), DIMENSIONS


def _measured(report: Report) -> Iterator[tuple[str, float]]:
    """What must be more than nothing where a kernel was timed."""
    if report.score_us is not None:
        yield "score_us", report.score_us
    yield from (("score_ci_us", us) for us in report.score_ci_us or ())
    yield from (("speedup", ratio) for ratio in report.speedup.values())
    for case in report.cases:
        yield from (("ci_us", us) for us in case.ci_us or ())
        yield from (("baseline_us", us) for us in case.baseline_us.values())
        yield from (("round_us", us) for us in case.round_us)
        yield from (("round_mhz", mhz) for mhz in case.round_mhz)
        yield from (("time_us", us) for us in (case.time_us,) if us is not None)
        yield from (("sol", share) for share in (case.sol,) if share is not None)


def _intervals(report: Report) -> Iterator[tuple[float, float] | None]:
    yield report.score_ci_us
    yield from (case.ci_us for case in report.cases)


def _check_picture(case: CaseResult) -> None:
    """Raise ValueError for a wrong answer of which no picture can be drawn."""
    if (found := case.mismatch) is None:
        return
    counts = [found.wrong_elements, found.total_elements, *(n for _, n in found.histogram)]
    if min([*found.shape, *found.index, *counts]) < 0:
        raise ValueError(f"case {case.name}: its mismatch is none of an array")
