"""The example submissions: `submissions/<problem>/<expected verdict>/<file>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from grader.problem import Problem
from grader.report import Report, Rule, Verdict
from grader.submission import LANGUAGES

_MARK = re.compile(r"^(?:#|//) grade: (.+)$", re.MULTILINE)
_HEAD_BYTES = 4096
"""Marks are read from the beginning of a file only."""


@dataclass(frozen=True)
class Example:
    """One example submission and the verdict that its folder names."""

    path: Path
    expected: Verdict
    needs_gpu: bool
    """The verdict is reached on a GPU only: the file is marked so, or is CUDA C++ that compiles."""
    rule: Rule | None = None
    """The rule that a `rejected` report must name."""
    others: tuple[Verdict | Rule, ...] = ()
    """Other verdicts and rules that are correct too: some attacks are detected by chance, and some
    break two rules, of which the report names the first that the judge sees."""
    needs: str | None = None
    """The package that it imports and that not every machine has."""

    def missing(self, device: str) -> str | None:
        """Why it cannot be graded on a device of this machine; None if it can."""
        if self.needs_gpu and device == "cpu":
            return "needs a GPU"
        if self.needs is not None and not _is_installed(self.needs):
            return f"needs the package {self.needs}, which is not installed"
        return None

    def fits(self, report: Report) -> bool:
        """Whether a report has the expected verdict and rule."""
        if report.verdict in self.others or report.rule in self.others:
            return True
        return (report.verdict, report.rule) == (self.expected, self.rule)


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
    """Read the marks of a file: comment lines such as ``# grade: device=cuda rule=time_claim``.

    ``or=NAME,…`` names other verdicts and rules that are correct too, ``needs=MODULE`` a package.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
    words = " ".join(_MARK.findall(head)).split()
    marks = dict(word.split("=", 1) for word in words if "=" in word)
    compiles = path.suffix == ".cu" and expected is not Verdict.COMPILE_ERROR
    rule = Rule(marks["rule"]) if "rule" in marks else None
    needs_gpu = marks.get("device") == "cuda" or compiles
    names = marks["or"].split(",") if "or" in marks else []
    others = tuple(Rule(name) if name in set(Rule) else Verdict(name) for name in names)
    return Example(path, expected, needs_gpu, rule, others, marks.get("needs"))


def _is_installed(module: str) -> bool:
    """Whether a module is found. Of its parents, only namespaces are imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # it has a parent, which is not installed
        return False
