"""Charts of times: a bar against the roofline, and the distribution of rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from grader.format import micros
from grader.server.pages.charts.svg import line, rect, svg, text
from grader.stats import Interval, estimate


def share_bar(share: float) -> Markup:
    """A bar of a share, from 0 to 1."""
    shown = min(max(share, 0.0), 1.0)
    return Markup(
        f'<svg class="bar" role="img" aria-label="{shown:.0%}" width="100%" height="16">'
        '<rect class="rail" width="100%" height="8" y="4" rx="4"/>'
        f'<rect class="fill" width="{shown:.2%}" height="8" y="4" rx="4"/></svg>'
    )


def roofline_bar(share: float | None, marks: Mapping[str, float]) -> Markup:
    """A bar of the roofline's share that was reached, with a tick for each baseline.

    share: 0 to 1; None if the roofline is not known.
    marks: baseline → its share of the roofline.
    """
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


def distribution(
    times_us: Sequence[float], ci_us: Interval | None, *, width: int = 300, height: int = 96
) -> Markup:
    """A histogram of a case's rounds, with the estimated time and its interval.

    times_us: at least one round.
    ci_us: the 95 % interval of the case's time.
    """
    rounds = _Rounds.of(times_us, ci_us)
    counts, bins = rounds.counts, len(rounds.counts)
    floor, top, left, right = height - 20.0, 8.0, 2.0, 2.0
    inner_width = width - left - right
    bin_width = inner_width / bins

    def x(value: float) -> float:
        return left + rounds.share(value) * inner_width

    parts = []
    if ci_us is not None:
        ci_width = max(x(ci_us[1]) - x(ci_us[0]), 1.0)
        parts.append(rect(x(ci_us[0]), top - 4, ci_width, floor - top + 4, "band"))
    for index, count in enumerate(counts):
        if count:
            tall = max(count / max(counts) * (floor - top), 2.0)
            parts.append(
                rect(left + index * bin_width + 0.5, floor - tall, bin_width - 1, tall, "fill")
            )
    parts.append(line(left, floor, width - right, floor, "axis"))
    estimate_x = x(rounds.estimate_us)
    parts.append(line(estimate_x, top - 4, estimate_x, floor, "estimate"))
    parts.append(text(left, height - 5, micros(rounds.low_us), "tick"))
    parts.append(text(width - right, height - 5, micros(rounds.high_us), "tick end"))
    return svg(width, height, rounds.label, parts, "distribution")


def strip(
    times_us: Sequence[float], ci_us: Interval | None, *, width: int = 340, height: int = 34
) -> Markup:
    """The same as a strip for narrow screens: the more rounds at a time, the darker."""
    rounds = _Rounds.of(times_us, ci_us)
    bin_width, floor = width / len(rounds.counts), height - 16.0
    parts = [rect(0, 4, width, floor - 8, "rail")]
    if ci_us is not None:
        low, high = (rounds.share(value) * width for value in ci_us)
        parts.append(rect(low, 0, max(high - low, 1.0), floor, "band"))
    for index, count in enumerate(rounds.counts):
        if count:
            share = 0.25 + 0.75 * count / max(rounds.counts)
            parts.append(
                f'<rect class="fill" fill-opacity="{share:.2f}" x="{index * bin_width:.1f}" y="4" '
                f'width="{bin_width:.1f}" height="{floor - 8:g}"/>'
            )
    estimate_x = rounds.share(rounds.estimate_us) * width
    parts.append(line(estimate_x, 0, estimate_x, floor, "estimate"))
    parts.append(text(0, height - 3, micros(rounds.low_us), "tick"))
    parts.append(text(width, height - 3, micros(rounds.high_us), "tick end"))
    return svg(width, height, rounds.label, parts, "strip")


@dataclass(frozen=True)
class _Rounds:
    """A case's rounds in bins of equal width. Those slower than the 99th percentile are in the
    last bin."""

    low_us: float
    high_us: float
    counts: tuple[int, ...]
    estimate_us: float
    label: str

    @classmethod
    def of(cls, times_us: Sequence[float], ci_us: Interval | None) -> _Rounds:
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
        value = estimate(ordered).value
        label = (
            f"{len(ordered)} rounds from {micros(ordered[0])} to {micros(ordered[-1])}, "
            f"estimate {micros(value)}"
        )
        return cls(low, high, tuple(counts), value, label)

    def share(self, time_us: float) -> float:
        """Where a time is between both ends, 0 to 1."""
        return (time_us - self.low_us) / (self.high_us - self.low_us)
