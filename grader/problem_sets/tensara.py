"""Tensara: a folder with `def.py`, and mostly `problem.md`."""

from __future__ import annotations

import re
from pathlib import Path

from grader.problem.imported import SetSource
from grader.problem_sets.reading import natural_order, problem_name, read_file

TITLE = "Tensara"
LICENCE = "none stated"
LINK = "https://github.com/tensara/problems"
EXPECTED = "a Tensara problem is a folder with def.py"
_TITLE = re.compile(rb'^title:\s*"?([^"\n]+?)"?\s*$', re.MULTILINE)
_HEAD_BYTES = 2000
"""How far into `problem.md` its front matter may reach."""


def find(root: Path) -> list[Path]:
    """The folders of all problems below `root`."""
    return sorted((file.parent for file in root.rglob("def.py")), key=natural_order)


def read(folder: Path) -> SetSource | None:
    """The problem in a folder; None if there is none."""
    if not (folder / "def.py").is_file():
        return None
    source = read_file(folder / "def.py")
    named = None
    if (folder / "problem.md").is_file():
        named = _TITLE.search(read_file(folder / "problem.md")[:_HEAD_BYTES])
    title = named[1].decode("utf-8", "replace") if named else folder.name
    return SetSource(
        "tensara", TITLE, LICENCE, LINK, problem_name("tensara", folder.name), title, folder,
        {"def.py": source},
    )  # fmt: skip
