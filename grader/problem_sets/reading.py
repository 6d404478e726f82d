"""What the readers of all sets have in common."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

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


def page_of(path: Path, link: str) -> str:
    """Where a file or folder is published: its page on GitHub if it is in a git checkout of `link`,
    or else `link` itself."""
    root = next((up for up in path.parents if (up / ".git").is_dir()), None)
    if root is None:
        return link
    try:
        config = (root / ".git" / "config").read_text("utf-8")
        head = (root / ".git" / "HEAD").read_text("utf-8").strip()
        reference = root / ".git" / head.removeprefix("ref: ")
        commit = reference.read_text("utf-8").strip() if reference.is_file() else head
    except (OSError, UnicodeDecodeError):
        return link
    repository = link.removeprefix("https://github.com/").lower()
    if not re.search(rf"github\.com[/:]{re.escape(repository)}(\.git)?\s*$", config.lower(), re.M):
        return link
    revision = commit if re.fullmatch(r"[0-9a-f]{40}", commit) else "HEAD"
    kind = "blob" if path.is_file() else "tree"
    return f"{link}/{kind}/{revision}/{quote(path.relative_to(root).as_posix())}"


def natural_order(path: Path) -> list[tuple[int, int, str]]:
    """Sorts paths so that 2 comes before 10."""
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts if p]
