"""Charts of a wrong output: the sizes of its errors, and where they are."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from markupsafe import Markup

from grader.server.pages.charts.svg import rect, svg, text


def error_histogram(histogram: Sequence[tuple[str, int]], *, width: int = 340) -> Markup:
    """The number of elements by absolute error: a bar for each decade, on a logarithmic scale."""
    if not histogram:
        return Markup("")
    row_height, left, right = 22.0, 76.0, 96.0
    most = math.log1p(max(count for _, count in histogram)) or 1.0
    parts = []
    for index, (label, count) in enumerate(histogram):
        y = index * row_height
        name = "fill" if label == "exact" else "bad"
        length = max(math.log1p(count) / most * (width - left - right), 1.0)
        parts.append(text(left - 8, y + 15, label[:12], "tick end"))
        parts.append(rect(left, y + 4, length, row_height - 8, name))
        parts.append(text(left + length + 6, y + 15, f"{count:,}", "tick"))
    total = sum(count for _, count in histogram)
    height = row_height * len(histogram)
    return svg(width, height, f"{total:,} elements by absolute error", parts, "errors")


def error_location(
    shape: Sequence[int], index: Sequence[int], worst: str | None, *, width: int = 220
) -> Markup:
    """The output as a rectangle of rows and columns, with its worst slice and first wrong element.

    shape: the output's shape. All dimensions but the last are flattened into rows, as the check
        does.
    index: the index of the first wrong element.
    worst: the worst slice, as the check describes it.

    Empty if the shape is empty or does not match the index.
    """
    if not shape or len(shape) != len(index) or math.prod(shape) == 0:
        return Markup("")
    columns = shape[-1]
    rows = max(math.prod(shape[:-1]), 1)
    row = 0
    for size, at in zip(shape[:-1], index[:-1], strict=True):
        row = row * size + at
    aspect = min(max(rows / columns, 0.18), 1.0)
    height = width * aspect
    column_width, row_height = (width - 4) / columns, (height - 4) / rows
    parts = [rect(2, 2, width - 4, height - 4, "sheet")]
    if (found := _parse_slice(worst, rows, columns)) is not None:
        first_row, first_column, row_count, column_count = found
        parts.append(
            rect(
                2 + first_column * column_width,
                2 + first_row * row_height,
                max(column_count * column_width, 3),
                max(row_count * row_height, 3),
                "bad",
            )
        )
    # The circle stays within the chart when the element is in a corner.
    x = min(max(2 + (index[-1] + 0.5) * column_width, 6), width - 6)
    y = min(max(2 + (row + 0.5) * row_height, 6), height - 6)
    parts.append(f'<circle class="first" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
    label = f"First wrong element at row {row} of {rows:,}, column {index[-1]} of {columns:,}"
    return svg(width, height, label + (f"; worst: {worst}" if worst else ""), parts, "location")


def _parse_slice(worst: str | None, rows: int, columns: int) -> tuple[int, int, int, int] | None:
    """First row, first column, rows and columns of a slice that the check describes.

    None for a description that is not known, or a slice outside of the output.
    """
    if worst is None:
        return None
    if found := re.fullmatch(r"row (\d{1,18})", worst):
        row, column, row_count, column_count = int(found[1]), 0, 1, columns
    elif found := re.fullmatch(r"column (\d{1,18})", worst):
        row, column, row_count, column_count = 0, int(found[1]), rows, 1
    elif found := re.search(r"(\d{1,4})×\d+ tile at row (\d{1,18}), column (\d{1,18})$", worst):
        size = int(found[1])
        row, column, row_count, column_count = int(found[2]), int(found[3]), size, size
    else:
        return None
    if row >= rows or column >= columns:
        return None
    return row, column, min(row_count, rows - row), min(column_count, columns - column)
