"""The drawing behind `grade plot`: times and rates over size, and a roofline. No judging."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from grader.cli.plotting.plot_labels import height, lead, spread, within
from grader.cli.plotting.plot_roofline import draw_roofline
from grader.cli.plotting.plot_style import CEILING, Picture, Series, Spot, finish, fitted, styled

LIGHT = "speed of light"

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
        draw_roofline(figure, figure.add_subplot(grid[:, 1]), replace(picture, spots=counted))
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
    for style, series in styled(picture.series):
        spots = [spot for spot in sizes.spots if spot.name in series.us]
        xs, seconds = [sizes.x[s.name] for s in spots], [series.us[s.name] / 1e6 for s in spots]
        axes.errorbar(xs, seconds, yerr=_errors_s(series, spots), capsize=3, **style)
    _draw_ceiling(axes, picture, sizes, lambda spot, seconds: seconds)
    axes.yaxis.set_major_formatter(EngFormatter("s", places=0))
    axes.set_ylabel("time per call")
    axes.tick_params(labelbottom=False)
    finish(axes)
    _name_cases(axes, sizes)
    _name_lines(axes, picture, sizes, lambda spot, seconds: seconds)


def _draw_rates(axes: Axes, picture: Picture, sizes: _Sizes) -> None:
    sizes.axis(axes)

    def rate(spot: Spot, seconds: float) -> float:
        return sizes.work(spot) / seconds

    rates = []
    for style, series in styled(picture.series):
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
    finish(axes)
    _name_lines(axes, picture, sizes, rate)


def _draw_ceiling(axes: Axes, picture: Picture, sizes: _Sizes, of: Measure) -> None:
    """What each case would have at the speed of light."""
    if (ceiling := picture.ceiling) is not None:
        xs = [sizes.x[spot.name] for spot in sizes.spots]
        ys = [of(spot, ceiling.floor_s(spot)) for spot in sizes.spots]
        axes.plot(xs, ys, color=CEILING, linewidth=1.2, zorder=1.5)


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
    for style, series in styled(picture.series):
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
        shown = fitted(name, weight)
        lead(axes, shown, (x, y), "data", (1.03, at), colour, va="center", weight=weight)


def _errors_s(series: Series, spots: list[Spot]) -> list[list[float]] | None:
    """How far the intervals reach below and above, seconds; a row each."""
    if not all(spot.name in series.ci_us for spot in spots):
        return None
    pairs = [(series.us[s.name], series.ci_us[s.name]) for s in spots]
    below = [max(us - low, 0) / 1e6 for us, (low, _) in pairs]
    return [below, [max(high - us, 0) / 1e6 for us, (_, high) in pairs]]
