"""KernelBench: a Python file with a module `Model`, in a folder `level1` to `level4`."""

from __future__ import annotations

import re
from pathlib import Path

from grader.problem.imported import SetSource
from grader.problem_sets.reading import natural_order, problem_name, read_file

TITLE = "KernelBench"
LICENCE = "MIT"
LINK = "https://github.com/ScalingIntelligence/KernelBench"
EXPECTED = "a KernelBench problem is a Python file with a class Model and get_inputs()"
FENCE = "~" * 8
_NUMBERED = re.compile(r"\d+_.*\.py")


def find(root: Path) -> list[Path]:
    """The files of all problems below `root`."""
    files = (file for file in root.rglob("level*/*.py") if _NUMBERED.fullmatch(file.name))
    return sorted(files, key=natural_order)


def read(path: Path) -> SetSource | None:
    """The problem in a file; None if it is no such file."""
    if not path.is_file():
        return None
    source = read_file(path)
    if b"class Model" not in source or b"def get_inputs" not in source:
        return None
    level, title = path.parent.name, path.stem.replace("_", " ").strip()
    name = problem_name("kernelbench", level, path.stem)
    return SetSource(
        "kernelbench", TITLE, LICENCE, LINK, name, title, path, {"model.py": source},
        statement=_statement(path, source),
    )  # fmt: skip


def _statement(path: Path, source: bytes) -> str:
    """The module, and the licence that lets others show it: its text must be beside each copy.
    Empty if the checkout has no such licence."""
    licences = [up / "LICENSE" for up in path.parents if (up / "LICENSE").is_file()]
    try:
        licence = read_file(licences[0]).decode("utf-8") if licences else ""
        code = source.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    if not licence.startswith("MIT License") or FENCE in licence + code:
        return ""
    lines = ["## The module", "", f"{FENCE}python", code.strip(), FENCE, ""]
    lines += [f"Copied from {TITLE} under its licence:", "", FENCE, licence.strip(), FENCE]
    return "\n".join(lines)
