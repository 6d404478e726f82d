"""What pictures show, and the looks that all of their panels share.

Everything is in base units (seconds, bytes, operations), and matplotlib finds the prefix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import LogLocator, NullFormatter

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""For submissions: the palette of Okabe and Ito, which the colour-blind can tell apart."""
GREYS = ("#444444", "#6e6e6e", "#8a8a8a", "#444444", "#6e6e6e", "#8a8a8a")
"""For baselines, which differ by marker and dash besides."""
MARKERS = "osD^vP"
DASHES = ((0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1)), (0, (8, 3)), (0, (2, 3)))
CEILING = "#1a1a1a"
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


def styled(series: Sequence[Series]) -> list[tuple[dict[str, Any], Series]]:
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


def finish(axes: Axes) -> None:
    """Ticks, grid and spines, once the limits are set."""
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log":
            _log_ticks(axis, math.log10(high / low))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def fitted(name: str, weight: str, points: float = NAME_POINTS) -> str:
    """The name, cut to the room there is."""
    shown = name
    while width(shown, weight) > points:
        name = name[:-1].rstrip("\\ ")
        shown = f"{name}…"
    return shown


def width(text: str, weight: str = "normal") -> float:
    """Points that the widest line of a label takes."""
    font = FontProperties(weight=weight)
    return max(TextPath((0, 0), line, 9, font).get_extents().width for line in text.split("\n"))
