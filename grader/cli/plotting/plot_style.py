"""The data of a plot, and the style that its panels share.

Values are in base units (seconds, bytes, operations); matplotlib chooses the prefix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, NullFormatter

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of submissions: the colour-blind safe palette of Okabe and Ito."""
GREYS = ("#444444", "#6e6e6e", "#8a8a8a", "#444444", "#6e6e6e", "#8a8a8a")
"""Colours of baselines, which differ by marker and dashes as well."""
MARKERS = "osD^vP"
DASHES = ((0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)), (0, (8, 3)), (0, (2, 3)))
ROOF_COLOR = "#1a1a1a"
NAME_POINTS = 165.0
"""Width of the space for a line's name, to the tick labels of the next panel."""


@dataclass(frozen=True)
class CaseCost:
    """One benchmark case: its name, and the bytes and operations of one call."""

    name: str
    nbytes: float
    flops: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes


@dataclass(frozen=True)
class TimingSeries:
    """The times of one submission or baseline, in microseconds per call, by case."""

    name: str
    us: dict[str, float]
    ci_us: dict[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals by case, if known."""
    baseline: bool = False


@dataclass(frozen=True)
class Roofline:
    """The measured peak rates of a device, per second, and the name of the arithmetic unit."""

    bytes_per_s: float
    flops_per_s: float
    unit: str

    @property
    def ridge_point(self) -> float:
        """Operations per byte above which arithmetic is the limit."""
        return self.flops_per_s / self.bytes_per_s

    def min_time_s(self, workload: CaseCost) -> float:
        """The least possible time of one call, in seconds."""
        return max(workload.nbytes / self.bytes_per_s, workload.flops / self.flops_per_s)


@dataclass(frozen=True)
class PlotData:
    """Everything that a plot shows."""

    title: str
    footnote: str
    workloads: list[CaseCost]
    series: list[TimingSeries]
    """Submissions first, in the order of their colours."""
    size_unit: Literal["bytes", "flops"]
    """Unit of a workload's size; rates are B/s or FLOP/s accordingly."""
    roofline: Roofline | None = None


def line_styles(series: Sequence[TimingSeries]) -> list[tuple[dict[str, Any], TimingSeries]]:
    """Style of each series: submissions solid and coloured, baselines dashed, hollow and grey."""
    styled: list[tuple[dict[str, Any], TimingSeries]] = []
    counts = {True: 0, False: 0}
    for one in series:
        index = counts[one.baseline] % len(COLORS)
        counts[one.baseline] += 1
        style: dict[str, Any] = {"marker": MARKERS[index], "zorder": 2.5 if one.baseline else 3}
        if one.baseline:
            style |= {"color": GREYS[index], "linestyle": DASHES[index], "linewidth": 1.2}
            style |= {"markerfacecolor": "white", "markersize": 5}
        else:
            style |= {"color": COLORS[index], "linewidth": 2, "markersize": 6.5}
            style |= {"markeredgecolor": "white", "markeredgewidth": 0.7}
        styled.append((style, one))
    return styled


def _log_ticks(axis: Any, decades: float) -> None:
    """Choose ticks that are all labelled and do not overlap."""
    axis.set_minor_formatter(NullFormatter())
    for subs, most in (((1, 2, 3, 5), 1.6), ((1, 2, 5), 2), ((1, 3), 3.5), ((1,), math.inf)):
        if decades < most:
            axis.set_major_locator(LogLocator(subs=subs))
            if _apart(axis):
                return


def _apart(axis: Any) -> bool:
    """Whether no two tick labels overlap."""
    boxes = [
        label.get_window_extent() for label in axis.get_majorticklabels() if label.get_visible()
    ]
    return not any(a.padded(8).overlaps(b) for a, b in itertools.pairwise(boxes))


def style_axes(axes: Axes) -> None:
    """Set ticks, grid and spines; the limits must be final."""
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log":
            _log_ticks(axis, math.log10(high / low))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def truncated(name: str, weight: str, points: float = NAME_POINTS) -> str:
    """The name, cut to this width in points."""
    shown = name
    while text_width(shown, weight) > points:
        name = name[:-1].rstrip("\\ ")
        shown = f"{name}…"
    return shown


@cache
def text_width(text: str, weight: str = "normal") -> float:
    """Width of a label's widest line, in points."""
    font = FontProperties(weight=weight)
    return max(TextPath((0, 0), line, 9, font).get_extents().width for line in text.split("\n"))
