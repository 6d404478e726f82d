"""SVG elements as text, and the boxes that labels cover."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

CHAR_WIDTH = 8.0
"""The approximate width of a bold character in a wide font such as DejaVu Sans, in units of the
chart."""

LINE_HEIGHT = 15

Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def svg(width: float, height: float, label: str, parts: Sequence[str], name: str) -> Markup:
    """An SVG element of a class, with a label for screen readers."""
    return Markup(  # every text in it is escaped
        f'<svg class="{name}" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">'
        f"{''.join(parts)}</svg>"
    )


def text(x: float, y: float, content: str, name: str) -> str:
    """A text; the class `end` aligns it to the right of x, `middle` centers it."""
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    """A straight line."""
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def rect(x: float, y: float, width: float, height: float, name: str) -> str:
    """A rectangle."""
    return (
        f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    )


def text_box(x: float, y: float, content: str, anchor: str) -> Box:
    """The box that a text covers; `anchor` is empty or ``end``."""
    width = CHAR_WIDTH * len(content)
    left = x - width if anchor == "end" else x
    return left, y - LINE_HEIGHT + 3, left + width, y + 3


def overlaps(box: Box, others: Sequence[Box]) -> bool:
    """Whether a box overlaps any of the others."""
    return any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in others
    )
