"""A leaderboard's record over time: a chart, and a sparkline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup, escape

from grader.format import micros
from grader.server.pages.charts.svg import Box, Point, line, overlaps, svg, text, text_box
from grader.server.services.standings import RecordStep

MAX_NAME_CHARS = 18


def record(
    steps: Sequence[RecordStep],
    until: datetime,
    baselines: Mapping[str, float],
    *,
    owner: str | None = None,
    width: int = 1056,
    height: int = 300,
) -> Markup:
    """The record over time as a step line, with a user's name at each improvement.

    steps: at least one; oldest first, each faster than the one before.
    until: the right end of the time axis.
    baselines: name → microseconds; a dashed line for each that is near the record.
    owner: the user whose own best it is; its times are shown instead of names.
    """
    left, right, top, bottom = 64.0, 16.0, 24.0, 30.0
    times = [step.time_us for step in steps]
    # A baseline far away would compress the record into a flat line.
    near = {n: us for n, us in baselines.items() if times[-1] / 4 <= us <= times[0] * 2}
    scale = _TimeScale.around([*times, *near.values()], height - bottom, top)
    start, span = steps[0].at, max((until - steps[0].at).total_seconds(), 1.0)

    def x(at: datetime) -> float:
        return left + (at - start).total_seconds() / span * (width - left - right)

    parts = [text(left - 10, scale(us) + 4, micros(us, 3), "tick end") for us in scale.ticks]
    parts += [line(left, scale(us), width - right, scale(us), "grid") for us in scale.ticks]
    for share, label, anchor in _date_ticks(start, until):
        tick_x = left + share * (width - left - right)
        parts.append(text(tick_x, height - 8, label, f"tick {anchor}"))
    covered: list[Box] = []
    for name, us in near.items():
        parts.append(line(left, scale(us), width - right, scale(us), "baseline"))
        box = text_box(width - right, scale(us) - 6, name, "end")
        if not overlaps(box, covered):
            covered.append(box)
            parts.append(text(width - right, scale(us) - 6, name, "tick end"))
    corners = [(x(step.at), scale(step.time_us)) for step in steps]
    path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}"
    path += "".join(f"H{px:.1f}V{py:.1f}" for px, py in corners[1:]) + f"H{width - right:.1f}"
    parts.append(f'<path class="record" d="{path}"/>')
    covered += _segment_boxes(corners, width - right)
    parts += _dots(steps, corners, covered, width, show_times=owner is not None)
    first, last = micros(times[0]), micros(times[-1])
    if owner is None:
        label = f"The record went from {first} by {steps[0].user} to {last} by {steps[-1].user}"
    else:
        label = f"The best of {owner} went from {first} to {last}"
    return svg(width, height, label, parts, "chart")


def sparkline(values: Sequence[float], *, width: int = 132, height: int = 36) -> Markup:
    """A record as a small step line, lower is better; empty for no values."""
    if not values:
        return Markup("")
    low, high = math.log(min(values)), math.log(max(values))
    span = (high - low) or 1.0

    def y(value: float) -> float:
        return 5 + (high - math.log(value)) / span * (height - 10) if high > low else height / 2

    step = (width - 12) / len(values)
    path = f"M2 {y(values[0]):.1f}"
    for index, value in enumerate(values[1:], start=1):
        path += f"H{2 + index * step:.1f}V{y(value):.1f}"
    end = (width - 6, y(values[-1]))
    parts = [
        f'<path class="record" d="{path}H{end[0]:.1f}"/>',
        f'<circle class="dot newest" cx="{end[0]:.1f}" cy="{end[1]:.1f}" r="3.5"/>',
    ]
    label = f"The record, from {micros(values[0])} to {micros(values[-1])}"
    return svg(width, height, label, parts, "spark")


def _dots(
    steps: Sequence[RecordStep],
    corners: Sequence[Point],
    covered: list[Box],
    width: float,
    *,
    show_times: bool,
) -> list[str]:
    """A dot for each improvement, with its user or time where there is room; newest first."""
    parts = []
    for step, (px, py) in reversed(list(zip(steps, corners, strict=True))):
        title = escape(f"{step.user}: {micros(step.time_us)}, {step.at:%-d %b %Y}")
        is_newest = step is steps[-1]
        dot = "dot newest" if is_newest else "dot"
        parts.append(
            f'<circle class="{dot}" cx="{px:.1f}" cy="{py:.1f}" r="{5 if is_newest else 3.5}">'
            f"<title>{title}</title></circle>"
        )
        name = micros(step.time_us, 3) if show_times else step.user
        if len(name) > MAX_NAME_CHARS:
            name = name[: MAX_NAME_CHARS - 1] + "…"
        for x, y, anchor in (
            (px + 5, py - 9, ""),
            (px - 5, py + 20, "end"),
            (px - 5, py - 9, "end"),
            (px + 5, py + 20, ""),
        ):
            box = text_box(x, y, name, anchor)
            if box[0] > 0 and box[2] < width and not overlaps(box, covered):
                covered.append(box)
                parts.append(text(x, y, name, f"name {anchor}".strip()))
                break
    return parts


def _segment_boxes(corners: Sequence[Point], end: float) -> list[Box]:
    """The boxes that the record's line covers."""
    boxes: list[Box] = []
    for (x1, y1), (x2, y2) in zip(corners, [*corners[1:], (end, corners[-1][1])], strict=True):
        boxes += [(x1, y1 - 2, x2, y1 + 2), (x2 - 2, min(y1, y2), x2 + 2, max(y1, y2))]
    return boxes


@dataclass(frozen=True)
class _TimeScale:
    """Maps microseconds to heights; logarithmic if the values differ by more than a factor of 4."""

    low: float
    high: float
    bottom: float
    top: float
    logarithmic: bool
    ticks: tuple[float, ...]

    @classmethod
    def around(cls, values: Sequence[float], bottom: float, top: float) -> _TimeScale:
        low, high = min(values), max(values)
        logarithmic = high / low > 4
        if logarithmic:
            low, high = low / 1.25, high * 1.15
            candidates = [b * 10.0**e for e in range(-4, 10) for b in (1, 2, 5)]
        else:
            room = (high - low) * 0.15 or high * 0.02
            low, high = max(low - room, low / 2), high + room
            step = _round_step((high - low) / 7)
            first, last = math.floor(low / step), math.ceil(high / step)
            candidates = [step * n for n in range(first, last + 1)]
        ticks = [us for us in candidates if low <= us <= high]
        return cls(
            low, high, bottom, top, logarithmic, tuple(ticks[:: math.ceil(len(ticks) / 7) or 1])
        )

    def __call__(self, us: float) -> float:
        if self.logarithmic:
            share = math.log(us / self.low) / math.log(self.high / self.low)
        else:
            share = (us - self.low) / (self.high - self.low)
        return self.bottom - share * (self.bottom - self.top)


def _round_step(step: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, … that is at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= step * 0.999)


def _date_ticks(start: datetime, until: datetime) -> Iterator[tuple[float, str, str]]:
    """Ticks at both ends and the middle of the time axis: share of the width, label, anchor."""
    span = until - start
    if span < timedelta(days=2):
        pattern = "%H:%M" if start.date() == until.date() else "%-d %b, %H:%M"
    elif span < timedelta(days=300):
        pattern = "%-d %b"
    else:
        pattern = "%b %Y"
    for share, anchor in ((0.0, ""), (0.5, "middle"), (1.0, "end")):
        yield share, f"{start + span * share:{pattern}}", anchor
