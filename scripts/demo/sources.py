"""The files that the demo server's made-up submissions consist of."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cached_property

from grader.cli.examples import Example, examples
from grader.problem import Problem
from grader.problem.scaffold import scaffold
from grader.report import Verdict
from grader.submission import Language, Submission
from scripts.demo.attempts import KINDS, Attempt, Kind

COMMENT: dict[Language, str] = {"python": "#", "cuda": "//"}
HEAD = "Example data of the demo server, submission {number}: its result is made up."
ATTACK = "hostile_"
"""Prefix of examples that attack the judge."""


@dataclass
class Sources:
    """The example submissions of a problem, and starter files for what it has no example of."""

    problem: Problem
    _starters: dict[Kind, str] = field(default_factory=dict)

    def failures(self) -> list[Verdict]:
        """The verdicts besides `accepted` that the problem has a file for."""
        shown = (Verdict.WRONG_ANSWER, Verdict.COMPILE_ERROR, Verdict.REJECTED)
        # A starter file is a wrong answer.
        return [one for one in shown if one is Verdict.WRONG_ANSWER or self._examples.get(one)]

    def pick(self, attempt: Attempt, number: int) -> tuple[Submission, Example | None]:
        """The file of an attempt, and the example that it was made of; None for a starter file.

        The number makes each file another one.
        """
        found = [
            (example, text)
            for example, text in self._examples.get(attempt.verdict, [])
            if attempt.verdict is not Verdict.ACCEPTED or _kind(example, text) == attempt.kind
        ]
        example: Example | None = None
        if found:
            example, text = random.Random(f"{self.problem.name} {number}").choice(found)
            name = example.path.name
        else:
            name, text = self._starter(attempt.kind)
        language: Language = "cuda" if name.endswith(".cu") else "python"
        head = f"{COMMENT[language]} {HEAD.format(number=number)}\n"
        return Submission(name, language, (head + text).encode()), example

    @cached_property
    def _examples(self) -> dict[Verdict, list[tuple[Example, str]]]:
        found: dict[Verdict, list[tuple[Example, str]]] = {}
        for example in examples(self.problem):
            text = example.path.read_bytes().decode("utf-8", "replace")
            # Without files that are not UTF-8 or empty, as some examples are on purpose.
            if text and "\ufffd" not in text and not example.path.name.startswith(ATTACK):
                found.setdefault(example.expected, []).append((example, text))
        return found

    def _starter(self, kind: Kind) -> tuple[str, str]:
        if kind not in self._starters:
            self._starters[kind] = scaffold(self.problem, kind)
        return f"{self.problem.name}_{kind}{KINDS[kind]}", self._starters[kind]


def _kind(example: Example, text: str) -> Kind:
    if example.path.suffix == ".cu":
        return "cuda"
    return "triton" if "import triton" in text else "torch"
