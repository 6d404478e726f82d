"""LeetGPU challenges: a folder with `challenge.py`."""

from __future__ import annotations

import re
from pathlib import Path

from grader.problem.imported import SetSource
from grader.problem_sets.reading import natural_order, problem_name, read_file

TITLE = "LeetGPU"
LICENCE = "CC BY-NC-ND 4.0"
LINK = "https://github.com/AlphaGPU/leetgpu-challenges"
EXPECTED = "a LeetGPU challenge is a folder with challenge.py"


def find(root: Path) -> list[Path]:
    """The folders of all challenges below `root`."""
    return sorted((file.parent for file in root.rglob("challenge.py")), key=natural_order)


def read(folder: Path) -> SetSource | None:
    """The challenge in a folder; None if there is none."""
    if not (folder / "challenge.py").is_file():
        return None
    source = read_file(folder / "challenge.py")
    files = {"challenge.py": source}
    base = next(
        (up / "core" for up in folder.parents if (up / "core" / "challenge_base.py").is_file()),
        None,
    )
    if base is not None:
        files |= {f"core/{file.name}": read_file(file) for file in sorted(base.glob("*.py"))}
    named = re.search(rb'^\s*name\s*=\s*"([^"\n]+)"', source, re.MULTILINE)
    title = named[1].decode("utf-8", "replace") if named else folder.name
    return SetSource(
        "leetgpu", TITLE, LICENCE, LINK, problem_name("leetgpu", folder.name), title, folder, files
    )
