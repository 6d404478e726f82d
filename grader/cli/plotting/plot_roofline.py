"""The roofline panel: arithmetic rate over arithmetic intensity, under the device's ceilings.

Labels are above the roof, since the points are below it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter

from grader.cli.plotting.plot_labels import (
    annotate_with_leader,
    axes_fraction_x,
    axes_fraction_y,
    shift_into,
    spread_apart,
)
from grader.cli.plotting.plot_style import (
    ROOF_COLOR,
    CaseCost,
    PlotData,
    Roofline,
    line_styles,
    style_axes,
    text_width,
    truncated,
)

LINE = 0.031
"""Height of a label's line, as a fraction of the axes' height."""

_LABEL_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
"""Hides the grid behind a label."""


def draw_roofline(figure: Figure, axes: Axes, data: PlotData) -> None:
    """Draw each workload's rates at its intensity, the roof, and a legend above the axes."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    columns = _columns(data)
    beside, above = _labels_beside(data, columns), _labels_above(data, columns)
    wide, tall = (72 * pixels / figure.dpi for pixels in (axes.bbox.width, axes.bbox.height))
    _set_limits(axes, data, beside, above, (wide, tall))
    axes.vlines(
        [column.x for column in columns], axes.get_ylim()[0], [column.y for column in columns],
        color="#e4e4e4", linewidth=0.8, zorder=0,
    )  # fmt: skip
    for style, series in reversed(line_styles(data.series)):
        timed = [workload for workload in data.workloads if workload.name in series.us]
        ys = [w.flops / series.us[w.name] * 1e6 for w in timed]
        axes.plot([w.intensity for w in timed], ys, **style | {"linestyle": "none"})
    if data.roofline is not None:
        _draw_roof(axes, data.roofline, [column.x for column in columns])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.yaxis.set_major_formatter(EngFormatter("FLOP/s"))
    axes.set_xlabel("operations per byte moved")
    style_axes(axes)
    _name_beside(axes, beside)
    _name_above(axes, above, wide)
    title = (
        "Arithmetic over intensity"
        if data.roofline is None
        else "Roofline: arithmetic over intensity"
    )
    axes.set_title(title, fontsize=10, loc="left", pad=_draw_legend(figure, axes, data, wide, tall))


@dataclass(frozen=True)
class _Label:
    """One or more lines of text for the point `x`, `y`."""

    x: float
    y: float
    text: str
    color: str = "#333333"


def _columns(data: PlotData) -> list[_Label]:
    """One label for the workloads of each intensity, at the roof; the fastest of the first
    submission is on top.

    Where points are above the roof, as for data in a cache, the label is at the highest point.
    """
    first, rates = data.series[0].us, _rates(data)
    by_x: dict[str, list[CaseCost]] = {}
    for workload in sorted(data.workloads, key=lambda workload: workload.intensity):
        by_x.setdefault(f"{workload.intensity:.2g}", []).append(workload)
    columns = []
    for workloads in by_x.values():
        workloads.sort(key=lambda w: -w.flops / first.get(w.name, math.inf))
        if (roofline := data.roofline) is not None:
            roof = max(w.flops / roofline.min_time_s(w) for w in workloads)
        else:
            roof = max(itertools.chain(*rates.values()))
        y = max(roof, *(max(rates[w.name]) for w in workloads))
        columns.append(_Label(workloads[0].intensity, y, "\n".join(w.name for w in workloads)))
    return columns


def _rates(data: PlotData) -> dict[str, list[float]]:
    """Operations per second of each series, by workload."""
    return {
        w.name: [w.flops / one.us[w.name] * 1e6 for one in data.series if w.name in one.us]
        for w in data.workloads
    }


def _labels_beside(data: PlotData, columns: list[_Label]) -> list[_Label]:
    """Labels to the left of the roof's slope, upwards: the columns there, and the roof's flat
    part."""
    if (roofline := data.roofline) is None:
        return []
    rate = EngFormatter("FLOP/s", places=0)(roofline.flops_per_s)
    flat = _Label(roofline.ridge_point, roofline.flops_per_s, f"{rate} {roofline.unit}", ROOF_COLOR)
    return [*(column for column in columns if column.x < roofline.ridge_point), flat]


def _labels_above(data: PlotData, columns: list[_Label]) -> list[_Label]:
    """Labels above the roof's flat part, or above all points: one per workload."""
    return [
        replace(column, text=name)
        for column in columns
        if data.roofline is None or column.x >= data.roofline.ridge_point
        for name in column.text.split("\n")
    ]


def _set_limits(
    axes: Axes,
    data: PlotData,
    beside: list[_Label],
    above: list[_Label],
    points: tuple[float, float],
) -> None:
    """Set limits with just enough room for the labels. `points`: the size of the axes."""
    xs = [workload.intensity for workload in data.workloads]
    rates = [rate for some in _rates(data).values() for rate in some]
    low, high = math.log10(min(xs) / 2), math.log10(max(xs) * 2)
    bottom, top = math.log10(min(rates) / 1.6), math.log10(max(rates))
    if (roofline := data.roofline) is not None:
        high = max(high, math.log10(2.5 * roofline.ridge_point))
        top = max(top, math.log10(roofline.flops_per_s))
    for label in beside:
        room = min((text_width(label.text) + 14) / points[0], 0.6)
        low = min(low, (math.log10(label.x) - room * high) / (1 - room))
    slanted = max((0.57 * text_width(label.text) + 10 for label in above), default=0.0)
    full = 1 - max(slanted / points[1] + 0.05, 1.5 * LINE)
    axes.set_xlim(10**low, 10**high)
    axes.set_ylim(10**bottom, 10 ** (bottom + (top - bottom) / full))
    if beside and (over := _bottoms(axes, beside)[-1] + LINE - 1) > 0:
        axes.set_ylim(10**bottom, 10 ** (bottom + (top - bottom) / max(full - over, 0.4)))


def _draw_roof(axes: Axes, roofline: Roofline, columns: list[float]) -> None:
    low_x, high_x = axes.get_xlim()
    xs = [low_x, roofline.ridge_point, high_x]
    ys = [min(x * roofline.bytes_per_s, roofline.flops_per_s) for x in xs]
    axes.plot(xs, ys, color=ROOF_COLOR, linewidth=1.5, zorder=1.5)
    # The bandwidth label goes on the slope, in the widest gap between columns.
    seen = max(low_x, axes.get_ylim()[0] / roofline.bytes_per_s)
    stops = [
        seen,
        *(x for x in columns if seen < x < roofline.ridge_point),
        roofline.ridge_point,
    ]
    left, right = max(itertools.pairwise(stops), key=lambda gap: gap[1] / gap[0])
    x, angle = math.sqrt(left * right), _slope(axes)
    away = (-5 * math.sin(math.radians(angle)), 5 * math.cos(math.radians(angle)))
    axes.annotate(
        f"{EngFormatter('B/s', places=2)(roofline.bytes_per_s)} memory",
        (x, x * roofline.bytes_per_s), away, textcoords="offset points", ha="center", va="bottom",
        rotation=angle, rotation_mode="anchor", fontsize=9, color=ROOF_COLOR,
    )  # fmt: skip


def _draw_legend(figure: Figure, axes: Axes, data: PlotData, wide: float, tall: float) -> float:
    """Draw the legend above the axes; return the distance of its top from them, in points."""
    rows = math.ceil(len(data.series) / math.ceil(len(data.series) / 4))
    lines = [
        (style, weight := "normal" if one.baseline else "bold", truncated(one.name, weight))
        for style, one in line_styles(data.series)
    ]
    columns = [lines[first : first + rows] for first in range(0, len(lines), rows)]
    widths = [max(text_width(name, weight) for _, weight, name in column) for column in columns]
    share = min((wide - 26 * len(columns)) / sum(widths), 1)
    x = 4.0
    for column, room in zip(columns, widths, strict=True):
        for row, (style, weight, name) in enumerate(column):
            y = 1 + (12 + 11.5 * (rows - 1 - row)) / tall
            figure.add_artist(Line2D([x / wide], [y], transform=axes.transAxes, **style))
            axes.text(
                (x + 8) / wide, y, truncated(name, weight, share * room), fontsize=9, va="center",
                transform=axes.transAxes, color=style["color"], weight=weight,
            )  # fmt: skip
        x += share * room + 26
    return 12 + 11.5 * rows


def _slope(axes: Axes) -> float:
    """Angle of y = x on these logarithmic axes, in degrees; the limits must be final."""
    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, 1.0), (10.0, 10.0)])
    return math.degrees(math.atan2(y1 - y0, x1 - x0))


def _name_beside(axes: Axes, labels: list[_Label]) -> None:
    """Draw labels to the left of the roof, each with a leader line to its point."""
    for label, bottom in zip(labels, _bottoms(axes, labels), strict=True):
        last = (1, 0.5 / len(label.text.split("\n")))
        annotate_with_leader(
            axes, label.text, (label.x, label.y), "data",
            (axes_fraction_x(axes, label.x) - 0.02, bottom), label.color, last,
            ha="right", va="bottom", bbox=_LABEL_BACKGROUND,
        )  # fmt: skip


def _bottoms(axes: Axes, labels: list[_Label]) -> list[float]:
    """Lower edge of each label beside the roof: above the roof and above the label before."""
    free, found = 0.0, []
    for label in labels:
        found.append(max(axes_fraction_y(axes, label.y) + 0.008, free))
        free = found[-1] + LINE * len(label.text.split("\n"))
    return found


def _name_above(axes: Axes, labels: list[_Label], wide: float) -> None:
    """Draw labels above the roof, each with a leader line to its point. `wide`: width of the axes
    in points."""
    if labels:
        most = 1.03 - 0.82 * max(text_width(label.text) for label in labels) / wide
        places = spread_apart([axes_fraction_x(axes, label.x) for label in labels], 0.068)
        for label, place in zip(labels, shift_into(places, 0.02, most), strict=True):
            annotate_with_leader(
                axes, label.text, (label.x, label.y), "data",
                (place, axes_fraction_y(axes, label.y) + 0.05), label.color,
                rotation=35, va="bottom", rotation_mode="anchor",
            )  # fmt: skip
