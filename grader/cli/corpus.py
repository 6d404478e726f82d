"""The example submissions: `submissions/<problem>/<expected verdict>/<file>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from grader.problem import Problem
from grader.report import Verdict
from grader.submission import LANGUAGES

_NEEDS_GPU = re.compile(rb"^(#|//) grade: device=cuda\s*$", re.MULTILINE)
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Example:
    """One example submission and the verdict that its folder names."""

    path: Path
    expected: Verdict
    needs_gpu: bool
    """Its verdict is only reached on a GPU: the file says so, or it is CUDA C++ that compiles."""


def examples(problem: Problem) -> list[Example]:
    """The example submissions of a problem, from the folder `submissions` beside `problems`."""
    root = problem.folder.resolve().parent.parent / "submissions" / problem.name
    return [
        _example(path, verdict)
        for verdict in Verdict
        for path in sorted((root / verdict).glob("*"))
        if path.suffix in LANGUAGES
    ]


def _example(path: Path, expected: Verdict) -> Example:
    with path.open("rb") as file:
        marked = _NEEDS_GPU.search(file.read(_HEAD_BYTES)) is not None
    compiles = path.suffix == ".cu" and expected is not Verdict.COMPILE_ERROR
    return Example(path, expected, marked or compiles)
