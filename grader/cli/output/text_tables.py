"""Tables that drop columns in a narrow terminal instead of cutting cells."""

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
class TableColumn:
    """A heading, which may have several lines, and a cell for each row."""

    heading: str
    cells: Sequence[Text]
    priority: int = 0
    """0 is always shown; the others are shown in rising order as long as they fit."""
    justify: JustifyMethod = "left"
    style: str = ""
    wraps_at: int | None = None
    """Least width to which text may wrap; None keeps each cell on one line."""

    @property
    def width(self) -> int:
        """Terminal cells that the column needs."""
        lines = [*self.heading.split("\n"), *(cell.plain for cell in self.cells)]
        return min(max(map(cell_len, lines)), self.wraps_at or 1 << 16)


@dataclass(frozen=True)
class ResponsiveTable:
    """A table that leaves out its columns of the lowest priority where they do not fit."""

    columns: Sequence[TableColumn]
    total: bool = False
    """Whether the last row summarizes the others; a rule separates it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        room = options.max_width + GAP
        kept = set()
        for index, column in sorted(enumerate(self.columns), key=lambda pair: pair[1].priority):
            if column.priority == 0 or column.width + GAP <= room:
                room -= column.width + GAP
                kept.add(index)
        yield self._table([column for i, column in enumerate(self.columns) if i in kept])

    def _table(self, columns: Sequence[TableColumn]) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            header_style="dim",
            padding=(0, GAP - 1, 0, 0),  # the box adds one cell
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


def number_column(heading: str, cells: Sequence[Text], priority: int = 0) -> TableColumn:
    """A right-aligned column."""
    return TableColumn(heading, cells, priority, justify="right")
