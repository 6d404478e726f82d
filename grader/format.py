"""Times, shares, ages and verdicts as text, for the pages and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from grader.report import Verdict

VERDICTS = {
    Verdict.ACCEPTED: "Accepted",
    Verdict.WRONG_ANSWER: "Wrong answer",
    Verdict.COMPILE_ERROR: "Compile error",
    Verdict.RUNTIME_ERROR: "Runtime error",
    Verdict.TIME_LIMIT_EXCEEDED: "Time limit exceeded",
    Verdict.MEMORY_LIMIT_EXCEEDED: "Memory limit exceeded",
    Verdict.OUTPUT_LIMIT_EXCEEDED: "Output limit exceeded",
    Verdict.REJECTED: "Rejected",
    Verdict.JUDGE_ERROR: "Judge error",
}

MEANINGS = {
    Verdict.ACCEPTED: "Right in every case, and won by the rules.",
    Verdict.WRONG_ANSWER: "It ran, and computed something else.",
    Verdict.COMPILE_ERROR: "It never became a function that can be called.",
    Verdict.RUNTIME_ERROR: "It raised, exited, or was killed while it ran.",
    Verdict.TIME_LIMIT_EXCEEDED: "It was ended at a time limit.",
    Verdict.MEMORY_LIMIT_EXCEEDED: "It was ended at a memory limit.",
    Verdict.OUTPUT_LIMIT_EXCEEDED: "It printed more than it may.",
    Verdict.REJECTED: "Its outputs are right, but a rule was broken.",
    Verdict.JUDGE_ERROR: "This is our fault, not yours.",
}

STAGES = {
    "sandbox_start": "starting a sandbox",
    "load": "loading the kernel",
    "test": "testing",
    "benchmark": "timing",
}

_AGES = ((60, "s"), (60, "min"), (24, "h"), (365, "d"))


def micros(time_us: float, digits: int = 4) -> str:
    """A time with the unit that suits it: µs, ms or s."""
    for limit, divisor, unit in ((999.95, 1.0, "µs"), (999950.0, 1e3, "ms")):
        if time_us < limit:
            return f"{_digits(time_us / divisor, digits)}\N{NO-BREAK SPACE}{unit}"
    return f"{_digits(time_us / 1e6, digits)}\N{NO-BREAK SPACE}s"


def _digits(value: float, digits: int) -> str:
    return f"{value:#.{digits}g}".rstrip(".")


def margin(time_us: float, ci_us: tuple[float, float] | None) -> str:
    """The relative half-width of an interval, as ``± 0.12 %``; empty without one."""
    if ci_us is None or time_us <= 0:
        return ""
    half = max(ci_us[1] - time_us, time_us - ci_us[0])
    return f"±\N{NO-BREAK SPACE}{100 * half / time_us:.2f}\N{NO-BREAK SPACE}%"


def percent(share: float | None) -> str:
    """A share as a percentage; a dash for none."""
    return "–" if share is None else f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def budget(used: float | None) -> str:
    """A share of what is allowed, as a percentage that does not grow for ever."""
    return ">999\N{NO-BREAK SPACE}%" if used is not None and used >= 10 else percent(used)


def ratio(value: float | None) -> str:
    """``1.25×``, with three digits; a dash for none."""
    return "–" if value is None else f"{_digits(value, 3)}×"


def number(value: float | None) -> str:
    """Four digits, or all before the point with thousands' commas; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:.4g}"


def small(value: float | None) -> str:
    """An error, as ``3.1e-07``; a dash for none."""
    return "–" if value is None else f"{value:.1e}"


def age(then: datetime, now: datetime) -> str:
    """How long ago, in the largest unit that fits: ``3 min``, ``2 d``."""
    value = max((now - then).total_seconds(), 0.0)
    if value < 1:
        return "now"
    for size, unit in _AGES:
        if value < size or unit == "d":
            return f"{int(value)}\N{NO-BREAK SPACE}{unit} ago"
        value /= size
    raise AssertionError("the largest unit takes all")


def ahead(then: datetime, now: datetime) -> str:
    """How long until then: ``in 3 d``, or ``over``."""
    if then <= now:
        return "over"
    return "in " + age(now, then).removesuffix(" ago").replace("now", "a moment")


def moment(at: datetime) -> str:
    """A moment in UTC for a person."""
    return f"{at:%-d %B %Y, %H:%M} UTC"


def parameters(params: Mapping[str, Any]) -> str:
    """``4096×4096 fp32``: sizes first, then the words that matter."""
    sizes = [f"{value}" for value in params.values() if is_size(value)]
    words = [value for value in params.values() if isinstance(value, str)]
    words += [name for name, value in params.items() if value is True]
    return " ".join(["×".join(sizes), *words]).strip()


def is_size(value: object) -> bool:
    """Whether a parameter's value is a size, and no flag."""
    return isinstance(value, int) and not isinstance(value, bool)


def verdict(value: Verdict | str | None) -> str:
    """A verdict in words."""
    return "No verdict" if value is None else VERDICTS[Verdict(value)]


def tone(value: Verdict | str | None) -> str:
    """The class that colours a verdict: good, bad, or odd for what is no plain mistake."""
    if value == Verdict.ACCEPTED:
        return "good"
    return "odd" if value in (None, Verdict.REJECTED, Verdict.JUDGE_ERROR) else "bad"
