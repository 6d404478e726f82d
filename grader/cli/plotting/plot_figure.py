"""The figure of `grade plot`: times and rates over size, and a roofline."""

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

from grader.cli.plotting.plot_labels import (
    annotate_with_leader,
    axes_fraction_y,
    shift_into,
    spread_apart,
)
from grader.cli.plotting.plot_roofline import draw_roofline
from grader.cli.plotting.plot_style import (
    ROOF_COLOR,
    CaseCost,
    PlotData,
    TimingSeries,
    line_styles,
    style_axes,
    truncated,
)

SPEED_OF_LIGHT = "speed of light"
"""Label of the times and rates at the roofline."""

Metric = Callable[[CaseCost, float], float]
"""The y value of a workload that took this time, in seconds."""


def draw(data: PlotData, path: Path) -> None:
    """Write the figure as PNG or SVG, by the suffix of `path`. Raises OSError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that the font lacks
        build_figure(data).savefig(path, format=path.suffix[1:])


def build_figure(data: PlotData) -> Figure:
    """Times above rates, over the same sizes, and a roofline on the right.

    Workloads without operations are not in the roofline. If none has operations, there is none.
    """
    figure = Figure(figsize=(14, 7.6), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    counted = [workload for workload in data.workloads if workload.flops]
    grid = figure.add_gridspec(
        2, 2 if counted else 1, width_ratios=(1.3, 1) if counted else None, left=0.085,
        right=0.985 if counted else 0.8, top=0.82, bottom=0.115, wspace=0.75, hspace=0.1,
    )  # fmt: skip
    time = figure.add_subplot(grid[0, 0])
    rate = figure.add_subplot(grid[1, 0], sharex=time)
    figure.text(0.02, 0.955, data.title, fontsize=15, weight="bold")
    figure.text(0.02, 0.022, data.footnote, fontsize=8.5, color="#555555")
    sizes = _SizeAxis(data)
    _draw_times(time, data, sizes)
    _draw_rates(rate, data, sizes)
    if counted:
        draw_roofline(figure, figure.add_subplot(grid[:, 1]), replace(data, workloads=counted))
    figure.align_ylabels([time, rate])
    return figure


class _SizeAxis:
    """The x position of each workload; workloads of equal size are moved apart."""

    def __init__(self, data: PlotData) -> None:
        self.unit = "B" if data.size_unit == "bytes" else "FLOP"
        self.workloads = sorted(data.workloads, key=lambda workload: self.work(workload))
        logs = [math.log10(self.work(workload)) for workload in self.workloads]
        width = max(logs[-1] - logs[0], 0.3)
        self.low, self.high = logs[0] - 0.06 * width, logs[-1] + 0.06 * width
        self.span = self.high - self.low
        positions = spread_apart(logs, 0.035 * self.span)
        self.x = {w.name: 10**x for w, x in zip(self.workloads, positions, strict=True)}

    def work(self, workload: CaseCost) -> float:
        return workload.nbytes if self.unit == "B" else workload.flops

    def axis(self, axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_xlim(10**self.low, 10**self.high)
        axes.xaxis.set_major_formatter(EngFormatter(self.unit))
        for x in self.x.values():
            axes.axvline(x, color="#e4e4e4", linewidth=0.8, zorder=0)


def _draw_times(axes: Axes, data: PlotData, sizes: _SizeAxis) -> None:
    sizes.axis(axes)
    axes.set_yscale("log")
    for style, series in line_styles(data.series):
        timed = [workload for workload in sizes.workloads if workload.name in series.us]
        xs, seconds = [sizes.x[w.name] for w in timed], [series.us[w.name] / 1e6 for w in timed]
        axes.errorbar(xs, seconds, yerr=_errors_s(series, timed), capsize=3, **style)
    _draw_min_times(axes, data, sizes, lambda workload, seconds: seconds)
    axes.yaxis.set_major_formatter(EngFormatter("s", places=0))
    axes.set_ylabel("time per call")
    axes.tick_params(labelbottom=False)
    style_axes(axes)
    _name_cases(axes, sizes)
    _name_lines(axes, data, sizes, lambda workload, seconds: seconds)


def _draw_rates(axes: Axes, data: PlotData, sizes: _SizeAxis) -> None:
    sizes.axis(axes)

    def rate(workload: CaseCost, seconds: float) -> float:
        return sizes.work(workload) / seconds

    rates = []
    for style, series in line_styles(data.series):
        timed = [workload for workload in sizes.workloads if workload.name in series.us]
        ys = [rate(w, series.us[w.name] / 1e6) for w in timed]
        axes.plot([sizes.x[w.name] for w in timed], ys, **style)
        rates += ys
    _draw_min_times(axes, data, sizes, rate)
    if min(rates) < max(rates) / 15:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(EngFormatter(f"{sizes.unit}/s"))
    axes.set_xlabel("data moved per call" if sizes.unit == "B" else "operations per call")
    axes.set_ylabel("memory traffic" if sizes.unit == "B" else "arithmetic")
    style_axes(axes)
    _name_lines(axes, data, sizes, rate)


def _draw_min_times(axes: Axes, data: PlotData, sizes: _SizeAxis, of: Metric) -> None:
    """The line of the workloads at the roofline."""
    if (roofline := data.roofline) is not None:
        xs = [sizes.x[workload.name] for workload in sizes.workloads]
        ys = [of(workload, roofline.min_time_s(workload)) for workload in sizes.workloads]
        axes.plot(xs, ys, color=ROOF_COLOR, linewidth=1.2, zorder=1.5)


# Labels ------------------------------------------------------------------------------------------


def _name_cases(axes: Axes, sizes: _SizeAxis) -> None:
    """Label each workload above the axes, with a leader line down to its x."""
    at = [(math.log10(sizes.x[w.name]) - sizes.low) / sizes.span for w in sizes.workloads]
    for w, label_x in zip(sizes.workloads, spread_apart(at, 0.052), strict=True):
        annotate_with_leader(
            axes, w.name, (sizes.x[w.name], 1), axes.get_xaxis_transform(), (label_x, 1.07),
            "#333333", rotation=35, va="bottom", rotation_mode="anchor",
        )  # fmt: skip


def _name_lines(axes: Axes, data: PlotData, sizes: _SizeAxis, of: Metric) -> None:
    """Label each line to the right of the axes, with a leader line from its last point."""
    ends: list[tuple[float, float, str, str, bool]] = []
    for style, series in line_styles(data.series):
        last = [workload for workload in sizes.workloads if workload.name in series.us][-1]
        y = of(last, series.us[last.name] / 1e6)
        ends.append((y, sizes.x[last.name], series.name, style["color"], not series.baseline))
    if data.roofline is not None:
        last = sizes.workloads[-1]
        y = of(last, data.roofline.min_time_s(last))
        ends.append((y, sizes.x[last.name], SPEED_OF_LIGHT, ROOF_COLOR, False))
    ends.sort()
    heights = spread_apart([axes_fraction_y(axes, y) for y, *_ in ends], 0.062)
    for (y, x, name, color, bold), at in zip(ends, shift_into(heights, 0, 1), strict=True):
        weight = "bold" if bold else "normal"
        shown = truncated(name, weight)
        annotate_with_leader(
            axes, shown, (x, y), "data", (1.03, at), color, va="center", weight=weight
        )


def _errors_s(series: TimingSeries, workloads: list[CaseCost]) -> list[list[float]] | None:
    """Two rows, in seconds: from the time down to its interval's lower end, and up to the upper
    end. None if an interval is not known."""
    if not all(workload.name in series.ci_us for workload in workloads):
        return None
    pairs = [(series.us[w.name], series.ci_us[w.name]) for w in workloads]
    below = [max(us - low, 0) / 1e6 for us, (low, _) in pairs]
    return [below, [max(high - us, 0) / 1e6 for us, (_, high) in pairs]]
