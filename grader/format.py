"""Times, shares, ages and verdicts as text, for the pages and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from grader.report import Rule, Verdict

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
    Verdict.ACCEPTED: "Correct in every case, and no rule was broken.",
    Verdict.WRONG_ANSWER: "It ran, but an output is wrong.",
    Verdict.COMPILE_ERROR: "It could not be compiled or loaded.",
    Verdict.RUNTIME_ERROR: "It raised an exception, exited, or was killed while it ran.",
    Verdict.TIME_LIMIT_EXCEEDED: "It exceeded a time limit.",
    Verdict.MEMORY_LIMIT_EXCEEDED: "It exceeded a memory limit.",
    Verdict.OUTPUT_LIMIT_EXCEEDED: "It printed more than the limit.",
    Verdict.REJECTED: "Its outputs are correct, but it broke a rule.",
    Verdict.JUDGE_ERROR: "The grading failed. This is our fault, not yours.",
}

RULES = {
    Rule.TIME_CLAIM: "Reporting a time that the judge's own clock refutes.",
    Rule.WORK_OUTSIDE_CALL: "Working before the call or after its return.",
    Rule.CARRIED_ANSWER: "Returning the output of an earlier call's inputs.",
    Rule.MEMORY_TAMPERED: "Writing inputs, or memory that is no output.",
    Rule.BELOW_FLOOR: "Being faster than the hardware allows; held for a person to look at.",
}
"""What each rule forbids."""

STAGES = {
    "sandbox_start": "starting a sandbox",
    "load": "loading the kernel",
    "test": "testing",
    "benchmark": "timing",
}

_AGES = ((60, "s"), (60, "min"), (24, "h"), (365, "d"))


def micros(time_us: float, digits: int = 4) -> str:
    """A time in the unit that fits: µs, ms or s."""
    for limit, divisor, unit in ((999.95, 1.0, "µs"), (999950.0, 1e3, "ms")):
        if time_us < limit:
            return f"{_digits(time_us / divisor, digits)}\N{NO-BREAK SPACE}{unit}"
    return f"{_digits(time_us / 1e6, digits)}\N{NO-BREAK SPACE}s"


def _digits(value: float, digits: int) -> str:
    return f"{value:#.{digits}g}".rstrip(".")


def margin(time_us: float, ci_us: tuple[float, float] | None) -> str:
    """The relative half-width of an interval, as ``± 0.12 %``; empty for None."""
    if ci_us is None or time_us <= 0:
        return ""
    half = max(ci_us[1] - time_us, time_us - ci_us[0])
    return f"±\N{NO-BREAK SPACE}{100 * half / time_us:.2f}\N{NO-BREAK SPACE}%"


def percent(share: float | None) -> str:
    """A share as a percentage; a dash for None."""
    return "–" if share is None else f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def budget(used: float | None) -> str:
    """A used share of an error budget as a percentage, capped at ``>999 %``."""
    return ">999\N{NO-BREAK SPACE}%" if used is not None and used >= 10 else percent(used)


def ratio(value: float | None) -> str:
    """``1.25×``, with three digits; a dash for None."""
    return "–" if value is None else f"{_digits(value, 3)}×"


def gap(share: float) -> str:
    """How much longer a time is than another: ``+4.2 %``, or ``12.5×`` from ten times as long on.

    share: the ratio of the two times, less 1.
    """
    if share >= 9:
        return ratio(1 + share)
    return f"+{100 * share:.{2 if share < 0.01 else 1 if share < 0.1 else 0}f}\N{NO-BREAK SPACE}%"


def number(value: float | None) -> str:
    """A number with four digits, or as an integer with thousands separators; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:.4g}"


def small(value: float | None) -> str:
    """An error, as ``3.1e-07``; a dash for None."""
    return "–" if value is None else f"{value:.1e}"


def age(then: datetime, now: datetime) -> str:
    """How long ago, in the largest unit that fits: ``3 min ago``, ``2 d ago``."""
    value = max((now - then).total_seconds(), 0.0)
    if value < 1:
        return "now"
    for size, unit in _AGES:
        if value < size or unit == "d":
            return f"{int(value)}\N{NO-BREAK SPACE}{unit} ago"
        value /= size
    raise AssertionError("the largest unit takes any value")


def wait(seconds: float | None) -> str:
    """A wait, roughly: ``about 3 min``; ``unknown`` for None."""
    if seconds is None:
        return "unknown"
    minutes = seconds / 60
    if minutes < 1:
        return "under 1\N{NO-BREAK SPACE}min"
    value, unit = (minutes, "min") if minutes < 90 else (minutes / 60, "h")
    return f"about {value:.0f}\N{NO-BREAK SPACE}{unit}"


def ahead(then: datetime, now: datetime) -> str:
    """How long until then: ``in 3 d``; ``over`` if it has passed."""
    if then <= now:
        return "over"
    return "in " + age(now, then).removesuffix(" ago").replace("now", "a moment")


def moment(at: datetime) -> str:
    """A moment in UTC, as ``1 May 2030, 21:59 UTC``."""
    return f"{at:%-d %B %Y, %H:%M} UTC"


def parameters(params: Mapping[str, Any]) -> str:
    """Parameters as ``4096×4096 fp32``: sizes, then strings, then the names of true flags."""
    sizes = [f"{value}" for value in params.values() if is_size(value)]
    words = [value for value in params.values() if isinstance(value, str)]
    words += [name for name, value in params.items() if value is True]
    return " ".join(["×".join(sizes), *words]).strip()


def is_size(value: object) -> bool:
    """Whether a parameter's value is a size and not a flag."""
    return isinstance(value, int) and not isinstance(value, bool)


def verdict(value: Verdict | str | None) -> str:
    """A verdict's name."""
    return "No verdict" if value is None else VERDICTS[Verdict(value)]


def tone(value: Verdict | str | None) -> str:
    """The CSS class of a verdict: good, bad, or odd (rejected, judge error, or none)."""
    if value == Verdict.ACCEPTED:
        return "good"
    return "odd" if value in (None, Verdict.REJECTED, Verdict.JUDGE_ERROR) else "bad"
