"""Images that stand for a page where a link to it is shown: 1200 × 630 pixels, as PNG.

Text is drawn as it is: nothing in it is interpreted, and what does not fit is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

FONTS = Path(__file__).parent.parent / "fonts"
WIDTH, HEIGHT = 1200, 630
MARGIN = 72
INNER = WIDTH - 2 * MARGIN
MAX_ROWS = 5
MAX_CHARS = 200
"""Characters of a text that are looked at."""

Tone = Literal["ink", "soft", "good", "bad", "odd", "accent"]

COLOURS: dict[str, str] = {
    "paper": "#fbfaf7", "ink": "#17181b", "soft": "#5c5e64", "line": "#e3e0d8",
    "accent": "#b93a12", "good": "#17713c", "bad": "#b0231b", "odd": "#6d42ad",
}  # fmt: skip
"""The light colours of the style sheet."""


@dataclass(frozen=True)
class Row:
    """A line of a ranking."""

    rank: str
    name: str
    value: str


@dataclass(frozen=True)
class Preview:
    """What an image says, from its top to its bottom."""

    title: str
    text: str = ""
    """Up to three lines below the title."""
    headline: str = ""
    """Large, in the colour of `tone`."""
    tone: Tone = "ink"
    rows: tuple[Row, ...] = ()
    note: str = ""
    """At the right of the site's name."""


@lru_cache(maxsize=128)
def draw(preview: Preview) -> bytes:
    """The image as PNG, about 40 KB."""
    image = Image.new("RGB", (WIDTH, HEIGHT), COLOURS["paper"])
    pen = _Pen(ImageDraw.Draw(image))
    pen.head(preview.note)
    pen.line(preview.title, 60, 44, is_bold=True)
    for line in pen.wrapped(preview.text, 30, lines=3):
        pen.line(line, 30, 30, tone="soft")
    if preview.headline:
        pen.skip(18)
        pen.line(preview.headline, 72, 44, tone=preview.tone, is_bold=True)
    pen.skip(16)
    for row in preview.rows[:MAX_ROWS]:
        pen.row(row)
    content = BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


class _Pen:
    """Draws lines of text from the top to the bottom."""

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self._draw = draw
        self._y = 150

    def head(self, note: str) -> None:
        """The site's mark and name, and a note."""
        for left, top, colour in ((0, 30, "ink"), (17, 18, "ink"), (34, 2, "accent")):
            box = (MARGIN + left, 62 + top, MARGIN + left + 11, 62 + 50)
            self._draw.rounded_rectangle(box, 2, fill=COLOURS[colour])
        self._text(MARGIN + 64, 66, "grade", _font(40, is_bold=True), "ink")
        font = _font(28, is_bold=False)
        text = _cut(note, font, WIDTH - 2 * MARGIN - 240)
        self._text(WIDTH - MARGIN - font.getlength(text), 76, text, font, "soft")

    def line(
        self, text: str, size: int, smallest: int, *, tone: str = "ink", is_bold: bool = False
    ) -> None:
        """One line over the whole width, smaller or cut where it does not fit."""
        while size > smallest and _font(size, is_bold=is_bold).getlength(text[:MAX_CHARS]) > INNER:
            size -= 4
        font = _font(size, is_bold=is_bold)
        self._text(MARGIN, self._y, _cut(text, font, INNER), font, tone)
        self._y += round(size * 1.35)

    def wrapped(self, text: str, size: int, lines: int) -> list[str]:
        """A text as lines that fit; the last one is cut."""
        font = _font(size, is_bold=False)
        found: list[str] = []
        words = text[: MAX_CHARS * 2].split()
        while words and len(found) < lines:
            count = 1
            while count < len(words) and font.getlength(" ".join(words[: count + 1])) <= INNER:
                count += 1
            count = len(words) if len(found) == lines - 1 else count
            found.append(" ".join(words[:count]))
            words = words[count:]
        return found

    def row(self, row: Row) -> None:
        """A line of a ranking, with a rule above it."""
        y, value_font, name_font = self._y, _font(32, is_bold=True), _font(32, is_bold=False)
        self._draw.line((MARGIN, y, WIDTH - MARGIN, y), fill=COLOURS["line"], width=2)
        value = _cut(row.value, value_font, 300)
        left = WIDTH - MARGIN - value_font.getlength(value)
        tone = "accent" if row.rank == "1" else "soft"
        self._text(MARGIN, y + 10, _cut(row.rank, value_font, 80), value_font, tone)
        name_left = MARGIN + (90 if row.rank else 0)
        name = _cut(row.name, name_font, left - name_left - 30)
        self._text(name_left, y + 10, name, name_font, "ink")
        self._text(left, y + 10, value, value_font, "ink")
        self._y += 60

    def skip(self, pixels: int) -> None:
        """Leave room."""
        self._y += pixels

    def _text(self, x: float, y: float, text: str, font: ImageFont.FreeTypeFont, tone: str) -> None:
        self._draw.text((x, y), text, font=font, fill=COLOURS[tone])


def _cut(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """A text as one line that is at most `width` pixels wide, with an ellipsis where it was cut."""
    line = "".join(one if one.isprintable() else " " for one in text[:MAX_CHARS])
    if len(text) <= MAX_CHARS and font.getlength(line) <= width:
        return line
    while line and font.getlength(f"{line}…") > width:
        line = line[:-1]
    return f"{line.rstrip()}…"


@lru_cache(maxsize=32)
def _font(size: int, *, is_bold: bool) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, one glyph for each character, without a shaping engine."""
    name = "DejaVuSans-Bold.ttf" if is_bold else "DejaVuSans.ttf"
    return ImageFont.truetype(FONTS / name, size, layout_engine=ImageFont.Layout.BASIC)
