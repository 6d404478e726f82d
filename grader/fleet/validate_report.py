"""Validation of a report from a worker on another machine. Pure functions.

A worker is trusted with the verdict on what it has leased. But the board is permanent and public,
so no number or text is accepted that the judge could not have produced.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from grader.report import LOG_BYTES, CaseResult, Report, Verdict, escape, one_line

MAX_TEXT_CHARS = 1000
"""The longest text, other than the log."""

MAX_GPU_CHARS = 200
"""The longest name of a GPU that the board stores."""

MAX_NUMBER = 1e18
"""Larger than every time, rate and ratio of a grading."""

MAX_DIMENSIONS = 16
"""More than any argument has."""

MAX_DEPTH = 20
"""Deeper than any report is nested."""

MAX_ENTRIES = 1000
"""More than any list or mapping of a report has, such as its cases."""

MAX_ROUNDS, MAX_BINS, MAX_BASELINES = 200, 100, 50
"""Limits of lists that are always short. The judge measures at most 40 rounds of a case."""

MAX_NOTES = 200
"""Further notes are dropped: a grading of many noisy cases may have more."""

_ERRORS = frozenset(
    ["max_abs_err", "rel_l2", "worst_slice_rel_l2", "error_budget_used", "expected", "got"]
)
"""The only numbers that may be infinite or NaN, since a wrong answer may be."""


def validate_report(report: Report, now: datetime) -> Report:
    """The report with every text escaped, and `created_at` by our clock.

    Raises ValueError for numbers that no grading has, and for lists longer than any grading's.
    """
    for name, length, limit in _lengths(report):
        if length > limit:
            raise ValueError(f"{name} cannot be {length:,} long; the limit is {limit:,}")
    dumped = report.model_dump(exclude={"log", "created_at", "reward"}) | {
        "notes": report.notes[:MAX_NOTES]
    }
    cleaned = _clean(dumped, "report")
    cleaned |= {
        "log": escape(report.log, LOG_BYTES),
        "reason": one_line(report.reason),
        "gpu": None if report.gpu is None else one_line(report.gpu, MAX_GPU_CHARS),
        "created_at": now,
        "worker": None,  # the server knows it by the worker's token
    }
    validated = Report.model_validate(cleaned)
    if validated.verdict is Verdict.ACCEPTED:
        for name, value in _positive_numbers(validated):
            if value <= 0:
                raise ValueError(f"{name} cannot be {value:g}")
    for low_us, high_us in (i for i in _intervals(validated) if i is not None):
        if low_us > high_us:
            raise ValueError(f"an interval cannot be from {low_us:g} to {high_us:g}")
    for case in validated.cases:
        _check_mismatch(case)
    return validated


def _clean(value: Any, name: str, depth: int = 0) -> Any:
    """The value with its texts escaped. Raises ValueError for what exceeds a limit."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{one_line(name, 40)} is nested too deep")
    if isinstance(value, dict | list | tuple) and len(value) > MAX_ENTRIES:
        raise ValueError(f"{one_line(name, 40)} cannot be {len(value):,} long")
    if isinstance(value, dict):
        return {
            one_line(str(key), 100): _clean(inner, str(key), depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_clean(inner, name, depth + 1) for inner in value]
    if isinstance(value, str):
        return one_line(value, MAX_TEXT_CHARS)
    if isinstance(value, float) and not abs(value) <= MAX_NUMBER and name not in _ERRORS:
        raise ValueError(f"{one_line(name, 40)} cannot be {value:g}")
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise ValueError(f"{one_line(name, 40)} is too large a number")
    return value


def _lengths(report: Report) -> Iterator[tuple[str, int, int]]:
    """The name, length and limit of each list that is always short."""
    yield "speedup", len(report.speedup), MAX_BASELINES
    for case in report.cases:
        yield "round_us", len(case.round_us), MAX_ROUNDS
        yield "round_mhz", len(case.round_mhz), MAX_ROUNDS
        yield "baseline_us", len(case.baseline_us), MAX_BASELINES
        if case.mismatch is not None:
            yield "histogram", len(case.mismatch.histogram), MAX_BINS
            yield "shape", len(case.mismatch.shape), MAX_DIMENSIONS
            yield "index", len(case.mismatch.index), MAX_DIMENSIONS


def _positive_numbers(report: Report) -> Iterator[tuple[str, float]]:
    """The numbers that must be positive in the report of a timed kernel."""
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


def _check_mismatch(case: CaseResult) -> None:
    """Raise ValueError for a mismatch that no page can draw."""
    if (mismatch := case.mismatch) is None:
        return
    counts = [
        mismatch.wrong_elements,
        mismatch.total_elements,
        *(count for _, count in mismatch.histogram),
    ]
    if min([*mismatch.shape, *mismatch.index, *counts]) < 0:
        raise ValueError(f"case {case.name}: a mismatch has no negative numbers")
