"""Where names go in a picture: beside their points, with a thin line, none over another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes


def lead(
    axes: Axes,
    text: str,
    point: tuple[float, float],
    frame: Any,
    at: tuple[float, float],
    colour: str,
    start: tuple[float, float] = (0, 0.5),
    **style: Any,
) -> None:
    """Text at a place given in fractions of the axes, and a thin line to its point; from where in
    the text it starts, or else from its left end."""
    line = {"arrowstyle": "-", "color": "#b0b0b0", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3}
    line["relpos"] = start  # else the line would begin in the middle of the text, and cross it
    axes.annotate(
        text, point, at, frame, "axes fraction", arrowprops=line, color=colour, fontsize=9,
        annotation_clip=False, **style,
    )  # fmt: skip


def height(axes: Axes, y: float) -> float:
    """A y of the data as a fraction of the axes, whose limits are set."""
    _, at = axes.transAxes.inverted().transform(axes.transData.transform((axes.get_xlim()[0], y)))
    return float(at)


def across(axes: Axes, x: float) -> float:
    """An x of the data as a fraction of the axes, whose limits are set."""
    at, _ = axes.transAxes.inverted().transform(axes.transData.transform((x, axes.get_ylim()[0])))
    return float(at)


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """The positions (in rising order), moved as little as makes neighbours at least `gap` apart.

    Neighbours that come too close become one group, evenly spaced around the mean of its members.
    """
    groups: list[list[float]] = []
    for position in positions:
        groups.append([position])
        while len(groups) > 1 and _first(groups[-1], gap) < _last(groups[-2], gap) + gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_first(group, gap) + i * gap for group in groups for i in range(len(group))]


def _first(group: list[float], gap: float) -> float:
    return math.fsum(group) / len(group) - gap * (len(group) - 1) / 2


def _last(group: list[float], gap: float) -> float:
    return _first(group, gap) + gap * (len(group) - 1)


def within(positions: list[float], low: float, high: float) -> list[float]:
    """The same, pushed down from `high` and then up from `low`, all by the same amount."""
    shift = min(0.0, high - positions[-1])
    shift = max(shift, low - positions[0])
    return [position + shift for position in positions]
