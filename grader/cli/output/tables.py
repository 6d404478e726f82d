"""A table of which a narrow terminal gets fewer columns, and never cut ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod
from rich.table import Table
from rich.text import Text

GAP = 2
"""Cells between two columns."""


@dataclass(frozen=True)
class Column:
    """One column, whole: its heading, which may have several lines, and a cell for each row."""

    heading: str
    cells: Sequence[Text]
    turn: int = 0
    """Columns are given room in this order, as long as there is some; those of turn 0 always."""
    justify: JustifyMethod = "left"
    style: str = ""
    wraps_at: int | None = None
    """Text that may wrap, but not to fewer cells than this; by default a cell has one line."""

    @property
    def width(self) -> int:
        """Cells that it needs."""
        lines = [*self.heading.split("\n"), *(cell.plain for cell in self.cells)]
        return min(max(map(cell_len, lines)), self.wraps_at or 1 << 16)


@dataclass(frozen=True)
class Fitting:
    """Columns beside each other; where they do not all fit, the later ones by turn are left out."""

    columns: Sequence[Column]
    total: bool = False
    """Whether the last row is about all others: then a line is above it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        room = options.max_width + GAP
        kept = set()
        for place, column in sorted(enumerate(self.columns), key=lambda pair: pair[1].turn):
            if column.turn == 0 or column.width + GAP <= room:
                room -= column.width + GAP
                kept.add(place)
        yield self._table([column for i, column in enumerate(self.columns) if i in kept])

    def _table(self, columns: Sequence[Column]) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            header_style="dim",
            padding=(0, GAP - 1, 0, 0),  # and one cell is the box's own
            show_edge=False,
            pad_edge=False,
        )
        for column in columns:
            table.add_column(
                Text(column.heading),
                justify=column.justify,
                style=column.style,
                overflow="fold",
                no_wrap=column.wraps_at is None,
            )
        rows = list(zip(*(column.cells for column in columns), strict=True))
        for row in rows:
            if self.total and row is rows[-1]:
                table.add_section()
            table.add_row(*row)
        return table


def numbers(heading: str, cells: Sequence[Text], turn: int = 0) -> Column:
    """A column of numbers, which end below each other."""
    return Column(heading, cells, turn, justify="right")
