"""The drawing behind `grade plot`: times and rates over size, and a roofline. No judging in here.

Everything is in base units (seconds, bytes, operations), and matplotlib finds the prefix.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

from grader.cli.labels import across, height, lead, spread, within

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""For submissions: the palette of Okabe and Ito, which the colour-blind can tell apart."""
GREYS = ("#444444", "#6e6e6e", "#8a8a8a", "#444444", "#6e6e6e", "#8a8a8a")
"""For baselines, which differ by marker and dash besides."""
MARKERS = "osD^vP"
DASHES = ((0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)), (0, (8, 3)), (0, (2, 3)))
CEILING = "#1a1a1a"
LIGHT = "speed of light"
NAME_POINTS = 165.0
"""Room for a name beside its line, before the numbers of the next panel."""


@dataclass(frozen=True)
class Spot:
    """One benchmark case: its name, and what one call must do at the least."""

    name: str
    nbytes: float
    flops: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes


@dataclass(frozen=True)
class Series:
    """The times of one submission or baseline, in microseconds per call, by case."""

    name: str
    us: dict[str, float]
    ci_us: dict[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals, where they are known."""
    baseline: bool = False


@dataclass(frozen=True)
class Ceiling:
    """The best that this device was seen to do, per second, and the name of its arithmetic."""

    bytes_per_s: float
    flops_per_s: float
    unit: str

    @property
    def ridge(self) -> float:
        """Operations per byte from which on arithmetic is what limits."""
        return self.flops_per_s / self.bytes_per_s

    def floor_s(self, spot: Spot) -> float:
        """The least time of one call, seconds."""
        return max(spot.nbytes / self.bytes_per_s, spot.flops / self.flops_per_s)


@dataclass(frozen=True)
class Picture:
    """All that is drawn."""

    title: str
    footnote: str
    spots: list[Spot]
    series: list[Series]
    """Submissions first, in the order of their colours."""
    by: Literal["bytes", "flops"]
    """What a case's size is, and so whether rates are B/s or FLOP/s."""
    ceiling: Ceiling | None = None


Measure = Callable[[Spot, float], float]
"""What a panel shows of a case that took so many seconds."""


def draw(picture: Picture, path: Path) -> None:
    """Write the picture as PNG or SVG, by the suffix of `path`. Raises OSError."""
    with warnings.catch_warnings():
        # Of glyphs that the font lacks: nothing that a user can mend.
        warnings.simplefilter("ignore")
        compose(picture).savefig(path, format=path.suffix[1:])


def compose(picture: Picture) -> Figure:
    """The figure: times above rates, over the same sizes, and a roofline beside them.

    A case without operations is not on the roofline; without any that has some, there is none.
    """
    figure = Figure(figsize=(14, 7.6), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    counted = [spot for spot in picture.spots if spot.flops]
    grid = figure.add_gridspec(
        2, 2 if counted else 1, width_ratios=(1.3, 1) if counted else None, left=0.085,
        right=0.985 if counted else 0.8, top=0.82, bottom=0.115, wspace=0.75, hspace=0.1,
    )  # fmt: skip
    time = figure.add_subplot(grid[0, 0])
    rate = figure.add_subplot(grid[1, 0], sharex=time)
    figure.text(0.02, 0.955, picture.title, fontsize=15, weight="bold")
    figure.text(0.02, 0.022, picture.footnote, fontsize=8.5, color="#555555")
    sizes = _Sizes(picture)
    _draw_times(time, picture, sizes)
    _draw_rates(rate, picture, sizes)
    if counted:
        _draw_roofline(figure.add_subplot(grid[:, 1]), replace(picture, spots=counted))
    figure.align_ylabels([time, rate])
    return figure


class _Sizes:
    """Where each case stands on the axis of sizes; cases of equal size stand side by side."""

    def __init__(self, picture: Picture) -> None:
        self.unit = "B" if picture.by == "bytes" else "FLOP"
        self.spots = sorted(picture.spots, key=lambda spot: self.work(spot))
        logs = [math.log10(self.work(spot)) for spot in self.spots]
        width = max(logs[-1] - logs[0], 0.3)
        self.low, self.high = logs[0] - 0.06 * width, logs[-1] + 0.06 * width
        self.span = self.high - self.low
        apart = spread(logs, 0.035 * self.span)
        self.x = {spot.name: 10**at for spot, at in zip(self.spots, apart, strict=True)}

    def work(self, spot: Spot) -> float:
        return spot.nbytes if self.unit == "B" else spot.flops

    def axis(self, axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_xlim(10**self.low, 10**self.high)
        axes.xaxis.set_major_formatter(EngFormatter(self.unit))
        for x in self.x.values():
            axes.axvline(x, color="#e4e4e4", linewidth=0.8, zorder=0)


def _draw_times(axes: Axes, picture: Picture, sizes: _Sizes) -> None:
    sizes.axis(axes)
    axes.set_yscale("log")
    for style, series in _styled(picture.series):
        spots = [spot for spot in sizes.spots if spot.name in series.us]
        xs, seconds = [sizes.x[s.name] for s in spots], [series.us[s.name] / 1e6 for s in spots]
        axes.errorbar(xs, seconds, yerr=_errors_s(series, spots), capsize=3, **style)
    _draw_ceiling(axes, picture, sizes, lambda spot, seconds: seconds)
    axes.yaxis.set_major_formatter(EngFormatter("s", places=0))
    axes.set_ylabel("time per call")
    axes.tick_params(labelbottom=False)
    _finish(axes)
    _name_cases(axes, sizes)
    _name_lines(axes, picture, sizes, lambda spot, seconds: seconds)


def _draw_rates(axes: Axes, picture: Picture, sizes: _Sizes) -> None:
    sizes.axis(axes)

    def rate(spot: Spot, seconds: float) -> float:
        return sizes.work(spot) / seconds

    rates = []
    for style, series in _styled(picture.series):
        spots = [spot for spot in sizes.spots if spot.name in series.us]
        ys = [rate(s, series.us[s.name] / 1e6) for s in spots]
        axes.plot([sizes.x[s.name] for s in spots], ys, **style)
        rates += ys
    _draw_ceiling(axes, picture, sizes, rate)
    if min(rates) < max(rates) / 15:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(EngFormatter(f"{sizes.unit}/s"))
    axes.set_xlabel("data moved per call" if sizes.unit == "B" else "operations per call")
    axes.set_ylabel("memory traffic" if sizes.unit == "B" else "arithmetic")
    _finish(axes)
    _name_lines(axes, picture, sizes, rate)


def _draw_ceiling(axes: Axes, picture: Picture, sizes: _Sizes, of: Measure) -> None:
    """What each case would have at the speed of light."""
    if (ceiling := picture.ceiling) is not None:
        xs = [sizes.x[spot.name] for spot in sizes.spots]
        ys = [of(spot, ceiling.floor_s(spot)) for spot in sizes.spots]
        axes.plot(xs, ys, color=CEILING, linewidth=1.2, zorder=1.5)


def _draw_roofline(axes: Axes, picture: Picture) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    timed = [(spot, one.us[spot.name]) for one in picture.series for spot in picture.spots
             if spot.name in one.us]  # fmt: skip
    xs = [spot.intensity for spot, _ in timed]
    ys = [spot.flops / us * 1e6 for spot, us in timed]
    low_x, high_x, high_y = min(xs) / 3, max(xs) * 12, max(ys) * 2
    if (ceiling := picture.ceiling) is not None:
        low_x = min(low_x, ceiling.ridge / 6)
        high_x, high_y = max(high_x, 3 * ceiling.ridge), 2.2 * ceiling.flops_per_s
    axes.set_xlim(low_x, high_x)
    axes.set_ylim(min(ys) / 3, high_y)
    if ceiling is not None:
        _draw_roof(axes, ceiling)
    for style, series in reversed(_styled(picture.series)):
        spots = [spot for spot in picture.spots if spot.name in series.us]
        ys = [spot.flops / series.us[spot.name] * 1e6 for spot in spots]
        axes.plot([s.intensity for s in spots], ys, **style | {"linestyle": "none"})
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.yaxis.set_major_formatter(EngFormatter("FLOP/s"))
    axes.set_xlabel("operations per byte moved")
    title = (
        "Arithmetic over intensity" if ceiling is None else "Roofline: arithmetic over intensity"
    )
    axes.set_title(title, fontsize=10, loc="left", pad=12)
    _finish(axes)
    _name_points(axes, picture)


def _draw_roof(axes: Axes, ceiling: Ceiling) -> None:
    low_x, high_x = axes.get_xlim()
    xs = [low_x, ceiling.ridge, high_x]
    ys = [min(x * ceiling.bytes_per_s, ceiling.flops_per_s) for x in xs]
    axes.plot(xs, ys, color=CEILING, linewidth=1.5, zorder=1.5)
    flat = f"{EngFormatter('FLOP/s', places=0)(ceiling.flops_per_s)} {ceiling.unit}"
    above: dict[str, Any] = {
        "xytext": (0, 4),
        "textcoords": "offset points",
        "fontsize": 9,
        "color": CEILING,
    }
    axes.annotate(flat, (high_x, ceiling.flops_per_s), ha="right", va="bottom", **above)
    # On the slope, near the lower end of what the window shows of it.
    y = 1.3 * max(axes.get_ylim()[0], low_x * ceiling.bytes_per_s)
    slope = f"{EngFormatter('B/s', places=2)(ceiling.bytes_per_s)} memory"
    axes.annotate(
        slope, (y / ceiling.bytes_per_s, y), ha="left", va="bottom", rotation=_slope(axes),
        rotation_mode="anchor", **above,
    )  # fmt: skip


def _slope(axes: Axes) -> float:
    """Degrees at which y = x climbs on these logarithmic axes, once both limits are set."""
    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, 1.0), (10.0, 10.0)])
    return math.degrees(math.atan2(y1 - y0, x1 - x0))


# Names beside what they name ---------------------------------------------------------------------


def _name_cases(axes: Axes, sizes: _Sizes) -> None:
    """Above the axes, each with a line down to its place."""
    at = [(math.log10(sizes.x[spot.name]) - sizes.low) / sizes.span for spot in sizes.spots]
    for spot, place in zip(sizes.spots, spread(at, 0.052), strict=True):
        lead(
            axes, spot.name, (sizes.x[spot.name], 1), axes.get_xaxis_transform(), (place, 1.07),
            "#333333", rotation=35, va="bottom", rotation_mode="anchor",
        )  # fmt: skip


def _name_lines(axes: Axes, picture: Picture, sizes: _Sizes, of: Measure) -> None:
    """To the right of the axes, each with a line from its last point."""
    ends: list[tuple[float, float, str, str, bool]] = []
    for style, series in _styled(picture.series):
        last = [spot for spot in sizes.spots if spot.name in series.us][-1]
        y = of(last, series.us[last.name] / 1e6)
        ends.append((y, sizes.x[last.name], series.name, style["color"], not series.baseline))
    if picture.ceiling is not None:
        last = sizes.spots[-1]
        y = of(last, picture.ceiling.floor_s(last))
        ends.append((y, sizes.x[last.name], LIGHT, CEILING, False))
    ends.sort()
    heights = spread([height(axes, y) for y, *_ in ends], 0.062)
    for (y, x, name, colour, bold), at in zip(ends, within(heights, 0, 1), strict=True):
        weight = "bold" if bold else "normal"
        shown = _fitted(name, weight)
        lead(axes, shown, (x, y), "data", (1.03, at), colour, va="center", weight=weight)


def _fitted(name: str, weight: str) -> str:
    """The name, cut to the room there is."""
    font, shown = FontProperties(weight=weight), name
    while TextPath((0, 0), shown, 9, font).get_extents().width > NAME_POINTS:
        name = name[:-1].rstrip("\\ ")
        shown = f"{name}…"
    return shown


def _name_points(axes: Axes, picture: Picture) -> None:
    """The first submission's points on the roofline, named to the right of their group."""
    first = picture.series[0]
    spots = sorted((s for s in picture.spots if s.name in first.us), key=lambda s: s.intensity)
    groups: list[list[Spot]] = []
    for spot in spots:
        if groups and across(axes, spot.intensity) - across(axes, groups[-1][-1].intensity) < 0.25:
            groups[-1].append(spot)
        else:
            groups.append([spot])
    for group in groups:
        points = sorted((s.flops / first.us[s.name] * 1e6, s.intensity, s.name) for s in group)
        right = max(across(axes, x) for _, x, _ in points) + 0.05
        heights = spread([height(axes, y) for y, *_ in points], 0.03)
        under_roof = height(axes, points[-1][0])
        if picture.ceiling is not None:
            under_roof = min(under_roof, height(axes, picture.ceiling.flops_per_s) - 0.025)
        for (y, x, name), at in zip(points, within(heights, 0.02, under_roof), strict=True):
            lead(axes, name, (x, y), "data", (right, at), "#333333", va="center")


# Styles ------------------------------------------------------------------------------------------


def _styled(series: Sequence[Series]) -> list[tuple[dict[str, Any], Series]]:
    """How each is drawn: submissions solid and coloured, baselines dashed, hollow and grey."""
    styled: list[tuple[dict[str, Any], Series]] = []
    counts = {True: 0, False: 0}
    for one in series:
        index = counts[one.baseline] % len(COLOURS)
        counts[one.baseline] += 1
        style: dict[str, Any] = {"marker": MARKERS[index], "zorder": 2.5 if one.baseline else 3}
        if one.baseline:
            style |= {"color": GREYS[index], "linestyle": DASHES[index], "linewidth": 1.2}
            style |= {"markerfacecolor": "white", "markersize": 5}
        else:
            style |= {"color": COLOURS[index], "linewidth": 2, "markersize": 6.5}
            style |= {"markeredgecolor": "white", "markeredgewidth": 0.7}
        styled.append((style, one))
    return styled


def _errors_s(series: Series, spots: list[Spot]) -> list[list[float]] | None:
    """How far the intervals reach below and above, seconds; a row each."""
    if not all(spot.name in series.ci_us for spot in spots):
        return None
    pairs = [(series.us[s.name], series.ci_us[s.name]) for s in spots]
    below = [max(us - low, 0) / 1e6 for us, (low, _) in pairs]
    return [below, [max(high - us, 0) / 1e6 for us, (_, high) in pairs]]


def _log_ticks(axis: Any, decades: float) -> None:
    """Ticks that are all labelled, few enough to read."""
    axis.set_minor_formatter(NullFormatter())
    for subs, most in (((1, 2, 3, 5), 1.6), ((1, 2, 5), 2), ((1, 3), 3.5), ((1,), math.inf)):
        if decades < most:
            axis.set_major_locator(LogLocator(subs=subs))
            if _apart(axis):
                return


def _apart(axis: Any) -> bool:
    """Whether there is room between all labels of the axis."""
    boxes = [
        label.get_window_extent() for label in axis.get_majorticklabels() if label.get_visible()
    ]
    return not any(a.padded(8).overlaps(b) for a, b in itertools.pairwise(boxes))


def _finish(axes: Axes) -> None:
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log":
            _log_ticks(axis, math.log10(high / low))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
