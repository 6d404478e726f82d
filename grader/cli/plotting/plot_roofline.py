"""The roofline of a picture: arithmetic over intensity, under what the device can do at best.

Points are under the roof, so that the names are above it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter

from grader.cli.plotting.plot_labels import across, height, lead, spread, within
from grader.cli.plotting.plot_style import (
    CEILING,
    Ceiling,
    Picture,
    Spot,
    finish,
    fitted,
    styled,
    width,
)

LINE = 0.031
"""How high a line of a label is, as a fraction of the roofline's axes."""

_PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
"""Behind a name, so that no line of the grid runs through it."""


def draw_roofline(figure: Figure, axes: Axes, picture: Picture) -> None:
    """Each case's rates over its intensity, under the roof, and a key above it all."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    columns = _columns(picture)
    beside, above = _named_beside(picture, columns), _named_above(picture, columns)
    wide, tall = (72 * pixels / figure.dpi for pixels in (axes.bbox.width, axes.bbox.height))
    _limit_roofline(axes, picture, beside, above, (wide, tall))
    axes.vlines(
        [column.x for column in columns], axes.get_ylim()[0], [column.y for column in columns],
        color="#e4e4e4", linewidth=0.8, zorder=0,
    )  # fmt: skip
    for style, series in reversed(styled(picture.series)):
        spots = [spot for spot in picture.spots if spot.name in series.us]
        ys = [spot.flops / series.us[spot.name] * 1e6 for spot in spots]
        axes.plot([s.intensity for s in spots], ys, **style | {"linestyle": "none"})
    if picture.ceiling is not None:
        _draw_roof(axes, picture.ceiling, [column.x for column in columns])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.yaxis.set_major_formatter(EngFormatter("FLOP/s"))
    axes.set_xlabel("operations per byte moved")
    finish(axes)
    _name_beside(axes, beside)
    _name_above(axes, above, wide)
    title = (
        "Arithmetic over intensity"
        if picture.ceiling is None
        else "Roofline: arithmetic over intensity"
    )
    axes.set_title(title, fontsize=10, loc="left", pad=_draw_key(figure, axes, picture, wide, tall))


@dataclass(frozen=True)
class _Label:
    """A name, or several below one another, of what is at `x`, just above `y`."""

    x: float
    y: float
    text: str
    colour: str = "#333333"


def _columns(picture: Picture) -> list[_Label]:
    """The cases of each intensity, and the roof above them; the first submission's fastest on top.

    A column that reaches above the roof, as out of a cache, ends above its highest point.
    """
    first, rates = picture.series[0].us, _rates(picture)
    by_x: dict[str, list[Spot]] = {}
    for spot in sorted(picture.spots, key=lambda spot: spot.intensity):
        by_x.setdefault(f"{spot.intensity:.2g}", []).append(spot)
    columns = []
    for spots in by_x.values():
        spots.sort(key=lambda spot: -spot.flops / first.get(spot.name, math.inf))
        if (ceiling := picture.ceiling) is not None:
            roof = max(spot.flops / ceiling.floor_s(spot) for spot in spots)
        else:
            roof = max(itertools.chain(*rates.values()))
        y = max(roof, *(max(rates[spot.name]) for spot in spots))
        columns.append(_Label(spots[0].intensity, y, "\n".join(spot.name for spot in spots)))
    return columns


def _rates(picture: Picture) -> dict[str, list[float]]:
    """Operations per second, by case."""
    return {
        spot.name: [
            spot.flops / one.us[spot.name] * 1e6 for one in picture.series if spot.name in one.us
        ]
        for spot in picture.spots
    }


def _named_beside(picture: Picture, columns: list[_Label]) -> list[_Label]:
    """What stands to the left of the roof's slope, upwards: columns, and the roof's flat part."""
    if (ceiling := picture.ceiling) is None:
        return []
    rate = EngFormatter("FLOP/s", places=0)(ceiling.flops_per_s)
    flat = _Label(ceiling.ridge, ceiling.flops_per_s, f"{rate} {ceiling.unit}", CEILING)
    return [*(column for column in columns if column.x < ceiling.ridge), flat]


def _named_above(picture: Picture, columns: list[_Label]) -> list[_Label]:
    """What stands above the roof's flat part, or above all points: each case of its own."""
    return [
        replace(column, text=name)
        for column in columns
        if picture.ceiling is None or column.x >= picture.ceiling.ridge
        for name in column.text.split("\n")
    ]


def _limit_roofline(
    axes: Axes,
    picture: Picture,
    beside: list[_Label],
    above: list[_Label],
    points: tuple[float, float],
) -> None:
    """Limits that leave room for the names, and for little else. `points`: the axes' size."""
    xs = [spot.intensity for spot in picture.spots]
    rates = [rate for some in _rates(picture).values() for rate in some]
    low, high = math.log10(min(xs) / 2), math.log10(max(xs) * 2)
    bottom, top = math.log10(min(rates) / 1.6), math.log10(max(rates))
    if (ceiling := picture.ceiling) is not None:
        high = max(high, math.log10(2.5 * ceiling.ridge))
        top = max(top, math.log10(ceiling.flops_per_s))
    for label in beside:
        room = min((width(label.text) + 14) / points[0], 0.6)
        low = min(low, (math.log10(label.x) - room * high) / (1 - room))
    slanted = max((0.57 * width(label.text) + 10 for label in above), default=0.0)
    full = 1 - max(slanted / points[1] + 0.05, 1.5 * LINE)
    axes.set_xlim(10**low, 10**high)
    axes.set_ylim(10**bottom, 10 ** (bottom + (top - bottom) / full))
    if beside and (over := _bottoms(axes, beside)[-1] + LINE - 1) > 0:
        axes.set_ylim(10**bottom, 10 ** (bottom + (top - bottom) / max(full - over, 0.4)))


def _draw_roof(axes: Axes, ceiling: Ceiling, columns: list[float]) -> None:
    low_x, high_x = axes.get_xlim()
    xs = [low_x, ceiling.ridge, high_x]
    ys = [min(x * ceiling.bytes_per_s, ceiling.flops_per_s) for x in xs]
    axes.plot(xs, ys, color=CEILING, linewidth=1.5, zorder=1.5)
    # On the slope, in the widest gap that the columns leave.
    seen = max(low_x, axes.get_ylim()[0] / ceiling.bytes_per_s)
    stops = [seen, *(x for x in columns if seen < x < ceiling.ridge), ceiling.ridge]
    left, right = max(itertools.pairwise(stops), key=lambda gap: gap[1] / gap[0])
    x, angle = math.sqrt(left * right), _slope(axes)
    away = (-5 * math.sin(math.radians(angle)), 5 * math.cos(math.radians(angle)))
    axes.annotate(
        f"{EngFormatter('B/s', places=2)(ceiling.bytes_per_s)} memory",
        (x, x * ceiling.bytes_per_s), away, textcoords="offset points", ha="center", va="bottom",
        rotation=angle, rotation_mode="anchor", fontsize=9, color=CEILING,
    )  # fmt: skip


def _draw_key(figure: Figure, axes: Axes, picture: Picture, wide: float, tall: float) -> float:
    """Whose each marker is, above the axes; how far above them its top is, in points."""
    rows = math.ceil(len(picture.series) / math.ceil(len(picture.series) / 4))
    lines = [
        (style, weight := "normal" if one.baseline else "bold", fitted(one.name, weight))
        for style, one in styled(picture.series)
    ]
    columns = [lines[first : first + rows] for first in range(0, len(lines), rows)]
    widths = [max(width(name, weight) for _, weight, name in column) for column in columns]
    share = min((wide - 26 * len(columns)) / sum(widths), 1)
    x = 4.0
    for column, room in zip(columns, widths, strict=True):
        for row, (style, weight, name) in enumerate(column):
            y = 1 + (12 + 11.5 * (rows - 1 - row)) / tall
            figure.add_artist(Line2D([x / wide], [y], transform=axes.transAxes, **style))
            axes.text(
                (x + 8) / wide, y, fitted(name, weight, share * room), fontsize=9, va="center",
                transform=axes.transAxes, color=style["color"], weight=weight,
            )  # fmt: skip
        x += share * room + 26
    return 12 + 11.5 * rows


def _slope(axes: Axes) -> float:
    """Degrees at which y = x climbs on these logarithmic axes, once both limits are set."""
    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, 1.0), (10.0, 10.0)])
    return math.degrees(math.atan2(y1 - y0, x1 - x0))


def _name_beside(axes: Axes, labels: list[_Label]) -> None:
    """To the left of the roof, each with a line to its place."""
    for label, bottom in zip(labels, _bottoms(axes, labels), strict=True):
        last = (1, 0.5 / len(label.text.split("\n")))
        lead(
            axes, label.text, (label.x, label.y), "data", (across(axes, label.x) - 0.02, bottom),
            label.colour, last, ha="right", va="bottom", bbox=_PLAIN,
        )  # fmt: skip


def _bottoms(axes: Axes, labels: list[_Label]) -> list[float]:
    """How high each name beside the roof begins: above the roof, and above those before."""
    free, found = 0.0, []
    for label in labels:
        found.append(max(height(axes, label.y) + 0.008, free))
        free = found[-1] + LINE * len(label.text.split("\n"))
    return found


def _name_above(axes: Axes, labels: list[_Label], wide: float) -> None:
    """Above the roof, each with a line down to its place. `wide`: the axes, in points."""
    if labels:
        most = 1.03 - 0.82 * max(width(label.text) for label in labels) / wide
        places = spread([across(axes, label.x) for label in labels], 0.068)
        for label, place in zip(labels, within(places, 0.02, most), strict=True):
            lead(
                axes, label.text, (label.x, label.y), "data", (place, height(axes, label.y) + 0.05),
                label.colour, rotation=35, va="bottom", rotation_mode="anchor",
            )  # fmt: skip
