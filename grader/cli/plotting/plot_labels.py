"""Placement of labels beside their points, without overlaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes


def annotate_with_leader(
    axes: Axes,
    text: str,
    point: tuple[float, float],
    frame: Any,
    at: tuple[float, float],
    color: str,
    start: tuple[float, float] = (0, 0.5),
    **style: Any,
) -> None:
    """Draw text at `at`, in fractions of the axes, with a leader line to `point`.

    frame: the coordinate system of `point`.
    start: where the line starts, in fractions of the text's box; by default at its left end.
    """
    line = {"arrowstyle": "-", "color": "#b0b0b0", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3}
    line["relpos"] = start  # the default is the middle: the line would cross the text
    axes.annotate(
        text, point, at, frame, "axes fraction", arrowprops=line, color=color, fontsize=9,
        annotation_clip=False, **style,
    )  # fmt: skip


def axes_fraction_y(axes: Axes, y: float) -> float:
    """A y of the data as a fraction of the axes' height; the limits must be final."""
    _, at = axes.transAxes.inverted().transform(axes.transData.transform((axes.get_xlim()[0], y)))
    return float(at)


def axes_fraction_x(axes: Axes, x: float) -> float:
    """An x of the data as a fraction of the axes' width; the limits must be final."""
    at, _ = axes.transAxes.inverted().transform(axes.transData.transform((x, axes.get_ylim()[0])))
    return float(at)


def spread_apart(positions: Sequence[float], gap: float) -> list[float]:
    """Move positions, which are in rising order, so that neighbours are at least `gap` apart.

    Neighbours that are too close form a group, evenly spaced around the mean of its members.
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


def shift_into(positions: list[float], low: float, high: float) -> list[float]:
    """Shift all positions by the same amount: below `high` first, then above `low`."""
    shift = min(0.0, high - positions[-1])
    shift = max(shift, low - positions[0])
    return [position + shift for position in positions]
