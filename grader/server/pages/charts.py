"""Pictures as inline SVG: the record over time, a bar against the roofline, a sparkline, a timing
distribution, where an output is wrong. Pure functions.

Colours are classes of the style sheet, so that a picture is right in light and dark. Nothing in
here is a style attribute or a script, which the pages' content policy forbids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup, escape

from grader.format import micros
from grader.stats import Interval, estimate

CHAR = 6.6
"""About how wide a character of a label is, in units of a picture."""

LINE = 15
"""How high a label is."""

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Step:
    """One improvement of a record."""

    at: datetime
    time_us: float
    who: str


def record(
    steps: Sequence[Step],
    until: datetime,
    yardsticks: Mapping[str, float],
    *,
    width: int = 1056,
    height: int = 300,
) -> Markup:
    """The record over time as a line of steps, each improvement with its name.

    steps: oldest first, each faster than the one before, one at least.
    yardsticks: baseline → microseconds; a dashed line each, where it is within the picture.
    """
    left, right, top, bottom = 64.0, 16.0, 24.0, 30.0
    times = [step.time_us for step in steps]
    # A yardstick that is far away would press the steps into a line.
    near = {n: us for n, us in yardsticks.items() if times[-1] / 4 <= us <= times[0] * 2}
    scale = _Scale.around([*times, *near.values()], height - bottom, top)
    start, span = steps[0].at, max((until - steps[0].at).total_seconds(), 1.0)

    def x(at: datetime) -> float:
        return left + (at - start).total_seconds() / span * (width - left - right)

    parts = [_text(left - 10, scale(us) + 4, micros(us, 3), "tick end") for us in scale.ticks]
    parts += [_line(left, scale(us), width - right, scale(us), "grid") for us in scale.ticks]
    for at, label, place in _days(start, until):
        parts.append(_text(left + at * (width - left - right), height - 8, label, f"tick {place}"))
    taken: list[Box] = []
    for name, us in near.items():
        parts.append(_line(left, scale(us), width - right, scale(us), "yardstick"))
        box = _box(width - right, scale(us) - 6, name, "end")
        if not _hits(box, taken):
            taken.append(box)
            parts.append(_text(width - right, scale(us) - 6, name, "tick end"))
    corners = [(x(step.at), scale(step.time_us)) for step in steps]
    path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}"
    path += "".join(f"H{px:.1f}V{py:.1f}" for px, py in corners[1:]) + f"H{width - right:.1f}"
    parts.append(f'<path class="record" d="{path}"/>')
    taken += _segments(corners, width - right)
    parts += _marks(steps, corners, taken, width)
    label = (
        f"The record went from {micros(times[0])} by {steps[0].who} "
        f"to {micros(times[-1])} by {steps[-1].who}"
    )
    return _svg(width, height, label, parts, "chart")


def _marks(
    steps: Sequence[Step],
    corners: Sequence[Point],
    taken: list[Box],
    width: float,
) -> list[str]:
    """A dot for each improvement, and its name where there is room; the newest go first."""
    parts = []
    for step, (px, py) in reversed(list(zip(steps, corners, strict=True))):
        title = escape(f"{step.who}: {micros(step.time_us)}, {step.at:%-d %b %Y}")
        newest = step is steps[-1]
        shown = "dot newest" if newest else "dot"
        parts.append(
            f'<circle class="{shown}" cx="{px:.1f}" cy="{py:.1f}" r="{5 if newest else 3.5}">'
            f"<title>{title}</title></circle>"
        )
        name = step.who if len(step.who) <= 18 else step.who[:17] + "…"
        for beside, y, place in (
            (px + 5, py - 9, ""),
            (px - 5, py + 20, "end"),
            (px - 5, py - 9, "end"),
            (px + 5, py + 20, ""),
        ):
            box = _box(beside, y, name, place)
            if box[0] > 0 and box[2] < width and not _hits(box, taken):
                taken.append(box)
                parts.append(_text(beside, y, name, f"name {place}".strip()))
                break
    return parts


def _segments(corners: Sequence[Point], end: float) -> list[Box]:
    """What the record's line covers."""
    covered: list[Box] = []
    for (x1, y1), (x2, y2) in zip(corners, [*corners[1:], (end, corners[-1][1])], strict=True):
        covered += [(x1, y1 - 2, x2, y1 + 2), (x2 - 2, min(y1, y2), x2 + 2, max(y1, y2))]
    return covered


def bar(share: float | None, marks: Mapping[str, float]) -> Markup:
    """How much of the roofline was reached, from 0 to 1, and a tick where each baseline stands."""
    reached = min(max(share or 0.0, 0.0), 1.0)
    parts = ['<rect class="rail" width="100%" height="8" y="4" rx="4"/>']
    if reached:
        parts.append(f'<rect class="fill" width="{reached:.2%}" height="8" y="4" rx="4"/>')
    for name, at in marks.items():
        if 0 < at <= 1:
            title = f"<title>{escape(f'{name}: {at:.0%} of the roofline')}</title>"
            parts.append(f'<rect class="mark" x="{at:.2%}" width="2" height="16">{title}</rect>')
    label = "roofline unknown" if share is None else f"{share:.0%} of the roofline"
    return Markup(  # every text in it is escaped above
        f'<svg class="bar" role="img" aria-label="{label}" width="100%" height="16">'
        f"{''.join(parts)}</svg>"
    )


def sparkline(values: Sequence[float], *, width: int = 132, height: int = 36) -> Markup:
    """A record as a small line of steps, lower is better; empty for fewer than one value."""
    if not values:
        return Markup("")
    low, high = math.log(min(values)), math.log(max(values))
    span = (high - low) or 1.0

    def y(value: float) -> float:
        return 5 + (high - math.log(value)) / span * (height - 10) if high > low else height / 2

    step = (width - 12) / len(values)
    path = f"M2 {y(values[0]):.1f}"
    for place, value in enumerate(values[1:], start=1):
        path += f"H{2 + place * step:.1f}V{y(value):.1f}"
    end = (width - 6, y(values[-1]))
    parts = [
        f'<path class="record" d="{path}H{end[0]:.1f}"/>',
        f'<circle class="dot newest" cx="{end[0]:.1f}" cy="{end[1]:.1f}" r="3.5"/>',
    ]
    label = f"The record, from {micros(values[0])} to {micros(values[-1])}"
    return _svg(width, height, label, parts, "spark")


def distribution(
    times_us: Sequence[float], ci_us: Interval | None, *, width: int = 300, height: int = 96
) -> Markup:
    """How the rounds of a case are spread: columns, their middle, its interval. One at least.

    The slowest rounds beyond the 99th part lie in the last column.
    """
    ordered = sorted(times_us)
    low, high = ordered[0], ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)))]
    if ci_us is not None:
        low, high = min(low, ci_us[0]), max(high, ci_us[1])
    if high <= low:
        room = abs(low) * 0.01 or 1.0
        low, high = low - room, high + room
    bins = min(36, max(8, round(2 * math.sqrt(len(ordered)))))
    counts = [0] * bins
    for value in ordered:
        counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
    floor, top, left, right = height - 20.0, 8.0, 2.0, 2.0
    inner = width - left - right

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * inner

    parts = []
    if ci_us is not None:
        wide = max(x(ci_us[1]) - x(ci_us[0]), 1.0)
        parts.append(_rect(x(ci_us[0]), top - 4, wide, floor - top + 4, "band"))
    for place, count in enumerate(counts):
        if count:
            tall = max(count / max(counts) * (floor - top), 2.0)
            column = inner / bins
            parts.append(_rect(left + place * column + 0.5, floor - tall, column - 1, tall, "fill"))
    centre = estimate(ordered).value
    parts.append(_line(left, floor, width - right, floor, "axis"))
    parts.append(_line(x(centre), top - 4, x(centre), floor, "centre"))
    parts.append(_text(left, height - 5, micros(low), "tick"))
    parts.append(_text(width - right, height - 5, micros(high), "tick end"))
    label = (
        f"{len(ordered)} rounds from {micros(ordered[0])} to {micros(ordered[-1])}, "
        f"middle {micros(centre)}"
    )
    return _svg(width, height, label, parts, "distribution")


def errors(histogram: Sequence[tuple[str, int]], *, width: int = 340) -> Markup:
    """How many elements are wrong by how much: a bar for each decade, on a logarithmic scale."""
    if not histogram:
        return Markup("")
    row, left, right = 22.0, 76.0, 96.0
    most = math.log1p(max(count for _, count in histogram)) or 1.0
    parts = []
    for place, (label, count) in enumerate(histogram):
        y = place * row
        shown = "fill" if label == "exact" else "bad"
        wide = math.log1p(count) / most * (width - left - right)
        parts.append(_text(left - 8, y + 15, label[:12], "tick end"))
        parts.append(_rect(left, y + 4, max(wide, 1.0), row - 8, shown))
        parts.append(_text(left + max(wide, 1.0) + 6, y + 15, f"{count:,}", "tick"))
    total = sum(count for _, count in histogram)
    return _svg(
        width, row * len(histogram), f"{total:,} elements by absolute error", parts, "errors"
    )


def place(
    shape: Sequence[int], index: Sequence[int], worst: str | None, *, width: int = 220
) -> Markup:
    """The output as a rectangle of rows and columns, with its worst slice and first wrong element.

    An output of more dimensions is seen as rows along its last one, as the check sees it; one
    without columns is a single row.
    """
    if not shape or len(shape) != len(index) or math.prod(shape) == 0:
        return Markup("")
    columns = shape[-1]
    rows = max(math.prod(shape[:-1]), 1)
    row = 0
    for size, at in zip(shape[:-1], index[:-1], strict=True):
        row = row * size + at
    aspect = min(max(rows / columns, 0.18), 1.0)
    height = width * aspect
    wide, tall = (width - 4) / columns, (height - 4) / rows
    parts = [_rect(2, 2, width - 4, height - 4, "sheet")]
    if (found := _slice(worst, rows, columns)) is not None:
        y, x, down, across = found
        parts.append(
            _rect(2 + x * wide, 2 + y * tall, max(across * wide, 3), max(down * tall, 3), "bad")
        )
    # Whole also where the element is in a corner.
    right = min(max(2 + (index[-1] + 0.5) * wide, 6), width - 6)
    low = min(max(2 + (row + 0.5) * tall, 6), height - 6)
    parts.append(f'<circle class="first" cx="{right:.1f}" cy="{low:.1f}" r="4.5"/>')
    label = f"First wrong element at row {row} of {rows:,}, column {index[-1]} of {columns:,}"
    return _svg(width, height, label + (f"; worst: {worst}" if worst else ""), parts, "place")


def _slice(worst: str | None, rows: int, columns: int) -> tuple[int, int, int, int] | None:
    """Row, column, rows, columns of a slice in the check's words; None for other words."""
    if worst is None:
        return None
    if found := re.fullmatch(r"row (\d{1,18})", worst):
        y, x, down, across = int(found[1]), 0, 1, columns
    elif found := re.fullmatch(r"column (\d{1,18})", worst):
        y, x, down, across = 0, int(found[1]), rows, 1
    elif found := re.search(r"(\d{1,4})×\d+ tile at row (\d{1,18}), column (\d{1,18})$", worst):
        y, x, down, across = int(found[2]), int(found[3]), int(found[1]), int(found[1])
    else:
        return None
    if y >= rows or x >= columns:
        return None
    return y, x, min(down, rows - y), min(across, columns - x)


# Scales ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scale:
    """Times to heights: logarithmic where they differ much."""

    low: float
    high: float
    bottom: float
    top: float
    logarithmic: bool
    ticks: tuple[float, ...]

    @classmethod
    def around(cls, values: Sequence[float], bottom: float, top: float) -> _Scale:
        low, high = min(values), max(values)
        logarithmic = high / low > 4
        if logarithmic:
            low, high = low / 1.25, high * 1.15
            found = [b * 10.0**e for e in range(-4, 10) for b in (1, 2, 5)]
        else:
            room = (high - low) * 0.15 or high * 0.02
            low, high = max(low - room, low / 2), high + room
            step = _nice((high - low) / 7)
            found = [step * n for n in range(math.floor(low / step), math.ceil(high / step) + 1)]
        ticks = [us for us in found if low <= us <= high]
        return cls(
            low, high, bottom, top, logarithmic, tuple(ticks[:: math.ceil(len(ticks) / 7) or 1])
        )

    def __call__(self, us: float) -> float:
        if self.logarithmic:
            share = math.log(us / self.low) / math.log(self.high / self.low)
        else:
            share = (us - self.low) / (self.high - self.low)
        return self.bottom - share * (self.bottom - self.top)


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, … that is no smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= step * 0.999)


def _days(start: datetime, until: datetime) -> Iterator[tuple[float, str, str]]:
    """Both ends of the time axis and its middle: share of the width, words, anchor."""
    span = until - start
    if span < timedelta(days=2):
        words = "%H:%M" if start.date() == until.date() else "%-d %b, %H:%M"
    elif span < timedelta(days=300):
        words = "%-d %b"
    else:
        words = "%b %Y"
    for share, place in ((0.0, ""), (0.5, "middle"), (1.0, "end")):
        yield share, f"{start + span * share:{words}}", place


# Pieces ------------------------------------------------------------------------------------------


def _svg(width: float, height: float, label: str, parts: Sequence[str], name: str) -> Markup:
    return Markup(  # every text in it is escaped
        f'<svg class="{name}" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, words: str, name: str) -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _rect(x: float, y: float, width: float, height: float, name: str) -> str:
    return (
        f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    )


def _box(x: float, y: float, words: str, place: str) -> Box:
    """What a label covers: left, top, right, bottom."""
    wide = CHAR * len(words)
    left = x - wide if place == "end" else x
    return left, y - LINE + 3, left + wide, y + 3


def _hits(box: Box, others: Sequence[Box]) -> bool:
    return any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in others
    )
