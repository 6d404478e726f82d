"""What the readers of all sets have in common."""

from __future__ import annotations

import re
from pathlib import Path

from grader.files import UnreadableFileError, read_regular_file
from grader.problem.spec import ProblemError

FILE_BYTES = 4 << 20


def read_file(path: Path, most_bytes: int = FILE_BYTES) -> bytes:
    """The content of a file of a set. Raises `ProblemError`."""
    try:
        return read_regular_file(path, most_bytes)
    except FileNotFoundError:
        raise ProblemError(f"{path}: missing") from None
    except UnreadableFileError as error:
        raise ProblemError(str(error)) from None


def problem_name(*parts: str) -> str:
    """A name for a problem in lower case, digits and underscores, of at most 64 characters."""
    text = re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).strip("_")
    return text[:64].rstrip("_")


def natural_order(path: Path) -> list[tuple[int, int, str]]:
    """Sorts paths so that 2 comes before 10."""
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts if p]
